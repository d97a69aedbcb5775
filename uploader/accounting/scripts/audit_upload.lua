-- Reads all that Redis holds of one upload, for the reconciler.
--
-- KEYS  1 up  2 chunks  3 era  4 due:flush  5 minutes:flush  6 due:merge  7 minutes:merge
-- ARGV  1 upload id
-- Returns {state, received, flushed, bitmap, queue}: state is '' if nothing is held; queue is where its task waits, in the
-- bucket that the hash names and the index, too: flush, merge, or '' if it waits nowhere. A figure that is none is -1.
--
-- One script because figures of different moments differ while chunks arrive.

local up = KEYS[1]
local facts = redis.call('HMGET', up, 'state', 'received', 'flushed')
local queue = ''
if delay_waits(KEYS[4], KEYS[5], up, ARGV[1]) then queue = 'flush' end
if delay_waits(KEYS[6], KEYS[7], up, ARGV[1]) then queue = 'merge' end
return {facts[1] or '', figure(facts[2] or '0') or -1, figure(facts[3] or '0') or -1, redis.call('GET', KEYS[2]) or '', queue}
