-- Fills a shard with open uploads, a thousand a call: what `hydrate` leaves of uploads without chunks, or with the first
-- chunk, whose flush waits. The scheduling is the prelude's, so that a compared queue is filled by its own code.
--
-- KEYS  1 era  2 due:flush  3 minutes:flush
-- ARGV  1 era token  2 prefix of up  3 prefix of chunks  4 first number  5 how many  6 chunk_count  7 length of the first
--       chunk (0: without)  8 first due time  9 ms over which the due times are spread  10 step between them in ms

local era, up_prefix, chunks_prefix = current_era(KEYS[1], ARGV[1]), ARGV[2], ARGV[3]
local first, count, chunk_count, length = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local base, over, step = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local pending = length > 0
local bitmap = string.char(pending and 128 or 0) .. string.rep(string.char(0), math.ceil(chunk_count / 8) - 1)
for number = first, first + count - 1 do
  local id = string.sub(redis.sha1hex(number), 1, 24) .. string.format('%08x', number)
  local up = up_prefix .. id
  redis.call('HSET', up, 'era', era, 'state', 'open',
    'figures', figures_text(length, 0, pending and 1 or 0, chunk_count, 0), 'timer', '')
  redis.call('SET', chunks_prefix .. id, bitmap)
  if pending then
    local due = base + (number * step) % over
    delay_schedule(KEYS[2], KEYS[3], up, id, due, 0, string.format(' %d 0', due))
  end
end
return count
