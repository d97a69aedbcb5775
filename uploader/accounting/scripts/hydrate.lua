-- Rebuilds an upload in Redis from its chunk map on disk and its row in the database. The caller holds the upload as a
-- closer: no chunk is written or recorded meanwhile.
--
-- KEYS  1 up  2 chunks  3 era  4 due:flush  5 minutes:flush  6 due:merge  7 minutes:merge
-- ARGV  1 now_ms ('' for TIME)  2 era token  3 upload id  4 era that was read before the map
--       5 generation  6 the map as a bitmap  7 size  8 chunk_size  9 chunk_count  10 flushed bytes  11 quiet_ms
--       12 '1' to change nothing if Redis knows the upload in this era; then the caller need not hold it
--       13 the tail from the map, as its field, or ''  14 '1' for a part, which is never merged, or ''
-- Returns word, received, chunks, chunk_count and state with a space between them. The word is one of
--   hydrated                done
--   era-moved               Redis was lost after the caller read the era: read era and map again
--   done, cancelled, expired, failed, consumed   refused, because there is a tombstone
--
-- One script because a half-built upload would answer chunks wrongly. Within an era and generation bits are only added;
-- a newer era or generation replaces everything.

local up, chunks, id, generation = KEYS[1], KEYS[2], ARGV[3], tonumber(ARGV[5])
local size, chunk_size, chunk_count = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local facts = redis.call('HMGET', up, 'era', 'state', 'figures')
local state, flushed = facts[2], tonumber(ARGV[10])

if ENDED[state] then return answer(state, 0, 0, 0, state) end
local era = current_era(KEYS[3], ARGV[2])
if era ~= ARGV[4] then return answer('era-moved', 0, 0, 0, '') end

if ARGV[12] == '1' and facts[1] == era then return answer('hydrated', 0, 0, 0, state or '') end

local _, known_flushed, _, _, known_generation = read_figures(facts[3])
local is_live = state == 'open' or state == 'merging'
if is_live and facts[1] == era and known_generation == generation then
  flushed = math.max(flushed, known_flushed)
  local from_map = chunks .. ':map'
  redis.call('SET', from_map, ARGV[6])
  redis.call('BITOP', 'OR', chunks, chunks, from_map)
  redis.call('DEL', from_map)
else
  -- The task may wait in a bucket of older data: remove it by its hash, then start from nothing.
  if state == 'merging' then
    delay_remove(KEYS[6], KEYS[7], up, id)
  else
    delay_remove(KEYS[4], KEYS[5], up, id)
  end
  redis.call('DEL', up)
  redis.call('SET', chunks, ARGV[6])
  state = false
end

local chunk_total = redis.call('BITCOUNT', chunks)
local received = 0
local tail_number, tail = read_tail(ARGV[13])
if tail_number then
  received = tail
  redis.call('HSET', up, 'tail', ARGV[13])
else
  redis.call('HDEL', up, 'tail')
end
if chunk_total > 0 then
  local last = redis.call('GETBIT', chunks, chunk_count - 1)
  received = received + (chunk_total - last) * chunk_size + last * (size - (chunk_count - 1) * chunk_size)
end
local is_part = ARGV[14] == '1'
if is_part then redis.call('HSET', up, 'part', '1') end
local is_whole = chunk_total == chunk_count and not is_part
local now = clock_ms(ARGV[1])
local due, minutes = KEYS[4], KEYS[5]
if is_whole then due, minutes = KEYS[6], KEYS[7] end

if is_whole and state == 'open' then delay_remove(KEYS[4], KEYS[5], up, id) end
redis.call('HSET', up, 'era', era, 'state', is_whole and 'merging' or 'open',
  'figures', figures_text(received, flushed, chunk_total, chunk_count, generation))

-- A waiting task stays where it is: repeated hydration must not delay the flush.
local waits = read_timer(redis.call('HGET', up, 'timer')) and delay_waits(due, minutes, up, id)
if is_whole then
  if not waits then
    delay_remove(due, minutes, up, id)
    delay_schedule(due, minutes, up, id, now, now, IDLE)
  end
  return answer('hydrated', received, chunk_total, chunk_count, 'merging')
end

if received == flushed then
  delay_remove(due, minutes, up, id)
elseif not waits then
  delay_remove(due, minutes, up, id)
  delay_schedule(due, minutes, up, id, now + tonumber(ARGV[11]), now, string.format(' %d 0', now))
end
return answer('hydrated', received, chunk_total, chunk_count, 'open')
