-- Finds when the earliest task of a queue is due.
--
-- KEYS  1 due  2 minutes
-- ARGV  1 now_ms ('' for TIME)  2 task prefix  3 number of tasks to look at
-- Returns the milliseconds until then, at least 0; -1 if the queue is empty. If more tasks were pushed back than it may look
-- at, it returns a shorter time, after which to look again.
--
-- One script because the index, its buckets and their tasks must be read together.

local now, room, earliest = clock_ms(ARGV[1]), tonumber(ARGV[3]), nil
for _, minute in ipairs(redis.call('ZRANGE', KEYS[2], 0, room)) do
  local found = redis.call('ZRANGE', KEYS[1] .. ':' .. minute, 0, room - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    local at = tonumber(found[i + 1])
    -- Later tasks are due at `at` or later.
    if earliest and earliest <= at then return math.max(0, earliest - now) end
    local _, due_ms = delay_timer(redis.call('HGET', ARGV[2] .. found[i], 'timer'))
    earliest, room = math.min(earliest or due_ms or at, due_ms or at), room - 1
    if room == 0 then return math.max(0, at - now) end
  end
end
return earliest and math.max(0, earliest - now) or -1
