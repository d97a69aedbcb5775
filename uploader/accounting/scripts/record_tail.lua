-- Records how many bytes of the first missing chunk are on disk: the one round trip at the end of an append.
--
-- KEYS  1 up  2 chunks  3 era  4 due:flush  5 minutes:flush  6 due:merge  7 minutes:merge
-- ARGV  1 now_ms ('' for TIME)  2 era token  3 upload id  4 chunk number  5 number of its bytes on disk
--       6 quiet_ms  7 max_delay_ms  8 max_pending_bytes  9 lease_ms
-- Returns what `record_chunk` returns; `duplicate` if as many bytes of the chunk, or the whole chunk, count already;
-- `rehydrate` if another chunk is the first missing chunk in Redis: the disk knows more.
--
-- One script because the sum, the tail and the delay task must change together. The number of bytes is absolute and only
-- grows, so recording it again changes nothing.

local up, chunks, id, number, length = KEYS[1], KEYS[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local facts = redis.call('HMGET', up, 'era', 'state', 'figures', 'timer', 'tail')
local era, state = facts[1], facts[2]
local received, flushed, chunk_total, chunk_count, generation = read_figures(facts[3])
local at, _, since, lease_until = read_timer(facts[4])
local tail_number, tail = read_tail(facts[5])

if ENDED[state] then return answer(state, 0, 0, 0, state) end
local is_whole = (state == 'open' or state == 'merging') and received and since
  and (tail_number or not facts[5])
if era ~= current_era(KEYS[3], ARGV[2]) or not is_whole then return answer('rehydrate', 0, 0, 0, '') end

if redis.call('GETBIT', chunks, number) == 1 or tail_number == number and tail >= length then
  return answer('duplicate', received, chunk_total, chunk_count, state)
end
-- BITPOS returns -1 for the empty string of an upload without chunks.
if math.max(redis.call('BITPOS', chunks, 0), 0) ~= number or tail_number and tail_number ~= number then
  return answer('rehydrate', 0, 0, 0, '')
end

received = received + length - (tail or 0)
local now = clock_ms(ARGV[1])
local timer = push_back(KEYS[4], KEYS[5], id, at, since, lease_until, received - flushed, now, ARGV[6], ARGV[7], ARGV[8])
redis.call('HSET', up, 'tail', number .. ' ' .. length, 'timer', timer,
  'figures', figures_text(received, flushed, chunk_total, chunk_count, generation))
return answer('recorded', received, chunk_total, chunk_count, state)
