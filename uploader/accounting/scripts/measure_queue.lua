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
local tasks, pending, lag, now = 0, 0, 0, clock_ms(ARGV[1])
if from == '' then from = '-inf' end
for _, minute in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], from, '+inf')) do
  local bucket = KEYS[1] .. ':' .. minute
  local found = redis.call('ZRANGE', bucket, position, position + room - 1)
  for _, id in ipairs(found) do
    local facts = redis.call('HMGET', ARGV[2] .. id, 'figures', 'timer')
    local received, flushed = read_figures(facts[1])
    local _, due_ms = read_timer(facts[2])
    tasks = tasks + 1
    if received then pending = pending + received - flushed end
    if due_ms then lag = math.max(lag, now - due_ms) end
  end
  position, room = position + #found, room - #found
  if room == 0 then return {tasks, pending, lag, minute, position} end
  position = 0
end
return {tasks, pending, lag, '', 0}
