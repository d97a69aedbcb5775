-- What waits of one upload.
--
-- KEYS  1 up
-- ARGV  1 now_ms ('' for TIME)
-- Returns {state, minute, pending bytes, lag_ms}; state is '' if the upload is not known, minute is '' if its task waits
-- nowhere.
--
-- One script because the figures and the timer belong to one moment.

local now, facts = clock_ms(ARGV[1]), redis.call('HMGET', KEYS[1], 'state', 'figures', 'timer')
local received, flushed = read_figures(facts[2])
local at, due_ms = read_timer(facts[3])
local minute = at and delay_minute(at) or ''
return {facts[1] or '', minute, received and received - flushed or 0, at and math.max(0, now - due_ms) or 0}
