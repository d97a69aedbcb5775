-- When the earliest task of a queue is due.
--
-- KEYS  1 due  2 minutes
-- ARGV  1 now_ms ('' for TIME)
-- Returns the milliseconds until then, at least 0, or -1 if the queue is empty.
--
-- One script because the index and the bucket it names must be read together.

local oldest = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
if not oldest then return -1 end
local first = redis.call('ZRANGE', KEYS[1] .. ':' .. oldest, 0, 0, 'WITHSCORES')
if not first[2] then return -1 end
return math.max(0, tonumber(first[2]) - clock_ms(ARGV[1]))
