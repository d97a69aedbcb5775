-- Measures the waiting task of one upload.
--
-- KEYS  1 up
-- ARGV  1 now_ms ('' for TIME)
-- Returns {state, minute, pending bytes, lag_ms}. state: '' if Redis does not know the upload. minute: '' without a waiting
-- task.
--
-- One script because the figures and the timer must be read at the same moment.

local now, facts = clock_ms(ARGV[1]), redis.call('HMGET', KEYS[1], 'state', 'figures', 'timer')
local received, flushed = read_figures(facts[2])
local at, due_ms = read_timer(facts[3])
local minute = at and delay_minute(at) or ''
return {facts[1] or '', minute, received and received - flushed or 0, at and math.max(0, now - due_ms) or 0}
