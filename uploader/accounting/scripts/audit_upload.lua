-- Reads everything that Redis has of one upload, for the reconciler.
--
-- KEYS  1 up  2 chunks  3 era  4 due:flush  5 minutes:flush  6 due:merge  7 minutes:merge
-- ARGV  1 upload id
-- Returns {state, received, flushed, bitmap, queue, tail number, tail}. state: '' without an upload or without figures.
-- queue: flush or merge if the task waits there by its hash, its bucket and the index, not later than its due time; else ''.
-- tail: the bytes of the tail, 0 without one. Unreadable figures are -1.
--
-- One script because figures read at different moments differ while chunks arrive.

local up = KEYS[1]
local facts = redis.call('HMGET', up, 'state', 'figures', 'tail')
local state, received, flushed = facts[1] or '', read_figures(facts[2])
if ENDED[state] then
  received, flushed = 0, 0
elseif not facts[2] then
  state, received, flushed = '', 0, 0
end
local tail_number, tail = read_tail(facts[3])
if facts[3] and not tail_number then received = nil end
local queue = ''
if delay_waits(KEYS[4], KEYS[5], up, ARGV[1]) then queue = 'flush' end
if delay_waits(KEYS[6], KEYS[7], up, ARGV[1]) then queue = 'merge' end
return {state, received or -1, flushed or -1, redis.call('GET', KEYS[2]) or '', queue, tail_number or 0, tail or 0}
