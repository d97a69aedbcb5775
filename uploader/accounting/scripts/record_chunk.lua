-- Records that a chunk is on disk: the one round trip of a chunk.
--
-- KEYS  1 up  2 chunks  3 era  4 due:flush  5 minutes:flush  6 due:merge  7 minutes:merge
-- ARGV  1 now_ms ('' for TIME)  2 era token  3 upload id  4 chunk number  5 length in bytes
--       6 quiet_ms  7 max_delay_ms  8 max_pending_bytes  9 lease_ms
-- Returns word, received, chunks, chunk_count and state with a space between them. The word is one of
--   recorded, duplicate     the chunk counts (from now on, or already)
--   rehydrate               Redis does not know this upload in this era: hydrate, then record again
--   merging                 closed to chunks, its merge is scheduled
--   done, cancelled, expired, failed, consumed   closed
--
-- One script because the bit, the sum, the delay task and the settling with the last bit must change together: a crash
-- between two of them would lose or invent bytes.

local up, chunks, id, number = KEYS[1], KEYS[2], ARGV[3], ARGV[4]
local facts = redis.call('HMGET', up, 'era', 'state', 'figures', 'timer', 'tail', 'part')
local era, state = facts[1], facts[2]
local received, flushed, chunk_total, chunk_count, generation = read_figures(facts[3])
local at, _, since, lease_until = read_timer(facts[4])
local tail_number, tail = read_tail(facts[5])

if ENDED[state] then return answer(state, 0, 0, 0, state) end
local is_whole = (state == 'open' or state == 'merging') and received and since
  and (tail_number or not facts[5])
if era ~= current_era(KEYS[3], ARGV[2]) or not is_whole then return answer('rehydrate', 0, 0, 0, '') end

local now = clock_ms(ARGV[1])
local lease = tonumber(ARGV[9])

if state == 'merging' then
  if not at then delay_schedule(KEYS[6], KEYS[7], up, id, now + lease, now, IDLE) end
  return answer('merging', received, chunk_total, chunk_count, state)
end

if redis.call('SETBIT', chunks, number, 1) == 1 then
  return answer('duplicate', received, chunk_total, chunk_count, state)
end
if tail_number == tonumber(number) then  -- its first bytes count already
  received = received - tail
  redis.call('HDEL', up, 'tail')
end
received, chunk_total = received + ARGV[5], chunk_total + 1
local figures = figures_text(received, flushed, chunk_total, chunk_count, generation)

if chunk_total == chunk_count and not facts[6] then
  delay_remove(KEYS[4], KEYS[5], up, id)
  redis.call('HSET', up, 'state', 'merging', 'figures', figures)
  delay_schedule(KEYS[6], KEYS[7], up, id, now + lease, now, IDLE)
  return answer('recorded', received, chunk_total, chunk_count, 'merging')
end

local timer = push_back(KEYS[4], KEYS[5], id, at, since, lease_until, received - flushed, now, ARGV[6], ARGV[7], ARGV[8])
redis.call('HSET', up, 'figures', figures, 'timer', timer)
return answer('recorded', received, chunk_total, chunk_count, state)
