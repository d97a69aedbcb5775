-- How much waits in a queue of uploads, a page at a time.
--
-- KEYS  1 due  2 minutes
-- ARGV  1 now_ms ('' for TIME)  2 task prefix (`up:{sNN}:`)  3 minute to go on from ('' for the oldest)
--       4 position in its bucket  5 limit
-- Returns {tasks, pending bytes, lag_ms, minute, position}: of this page; the last two are where the next one begins, and
-- minute is '' where there is none.
--
-- One script because the index, its buckets and the uploads in them belong to one moment, and a trip for each would be
-- long.

local from, position, room = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local tasks, pending, lag = 0, 0, 0
if from == '' then from = '-inf' end
for _, minute in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], from, '+inf')) do
  local bucket = KEYS[1] .. ':' .. minute
  local found = redis.call('ZRANGE', bucket, position, position + room - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    local facts = redis.call('HMGET', ARGV[2] .. found[i], 'received', 'flushed')
    tasks = tasks + 1
    pending = pending + (figure(facts[1]) or 0) - (figure(facts[2]) or 0)
    lag = math.max(lag, clock_ms(ARGV[1]) - tonumber(found[i + 1]))
  end
  position, room = position + #found / 2, room - #found / 2
  if room == 0 then return {tasks, pending, lag, minute, position} end
  position = 0
end
return {tasks, pending, lag, '', 0}
