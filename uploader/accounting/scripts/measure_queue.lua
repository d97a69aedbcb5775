-- Measures the minute buckets of a queue of uploads, page by page.
--
-- KEYS  1 due  2 minutes
-- ARGV  1 now_ms ('' for TIME)  2 task prefix (`up:{sNN}:`)  3 minute of the page's start ('' for the oldest)
--       4 position in that bucket  5 limit
-- Returns {lag_ms, minute, position}, and for each bucket of this page its minute, tasks and pending bytes. lag_ms is for
-- this page. minute and position are the start of the next page; minute is '' after the last page.
--
-- One script because the index, its buckets and their uploads must be read at the same moment, and a round trip for each
-- would be slow.

local from, position, room = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local now, reply = clock_ms(ARGV[1]), {0, '', 0}
if from == '' then from = '-inf' end
for _, minute in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], from, '+inf')) do
  local bucket, pending = KEYS[1] .. ':' .. minute, 0
  local found = redis.call('ZRANGE', bucket, position, position + room - 1)
  for _, id in ipairs(found) do
    local facts = redis.call('HMGET', ARGV[2] .. id, 'figures', 'timer')
    local received, flushed = read_figures(facts[1])
    local _, due_ms = read_timer(facts[2])
    if received then pending = pending + received - flushed end
    if due_ms then reply[1] = math.max(reply[1], now - due_ms) end
  end
  local last = #reply
  if #found > 0 then reply[last + 1], reply[last + 2], reply[last + 3] = minute, #found, pending end
  position, room = position + #found, room - #found
  if room == 0 then
    reply[2], reply[3] = minute, position
    return reply
  end
  position = 0
end
return reply
