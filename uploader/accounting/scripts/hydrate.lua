-- Rebuilds what Redis knows of one upload from its chunk map on disk and its row in the database. The caller holds the
-- upload as a closer: no chunk is written or recorded meanwhile.
--
-- KEYS  1 up  2 chunks  3 era  4 due:flush  5 minutes:flush  6 due:merge  7 minutes:merge
-- ARGV  1 now_ms ('' for TIME)  2 era token  3 upload id  4 era that was read before the map
--       5 generation  6 the map as a bitmap  7 size  8 chunk_size  9 chunk_count  10 flushed bytes  11 quiet_ms
--       12 '1' to leave an upload that Redis knows in this era as it is; then the caller need not hold it
-- Returns {word, received, chunks, chunk_count, state}; word is one of
--   hydrated                done
--   era-moved               Redis was lost after the caller read the era: read era and map again
--   done, cancelled, expired, failed   a tombstone stands here: refused
--
-- One script because a half-built upload would answer chunks wrongly. Within an era and generation bits are only added;
-- a newer era or generation replaces everything.

local up, chunks, id, generation = KEYS[1], KEYS[2], ARGV[3], ARGV[5]
local size, chunk_size, chunk_count = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local facts = redis.call('HMGET', up, 'era', 'generation', 'state', 'flushed')
local state, flushed = facts[3], tonumber(ARGV[10])

if ENDED[state] then return {state, 0, 0, 0, state} end
local era = current_era(KEYS[3], ARGV[2])
if era ~= ARGV[4] then return {'era-moved', 0, 0, 0, ''} end

if ARGV[12] == '1' and facts[1] == era then return {'hydrated', 0, 0, 0, state} end

local is_live = state == 'open' or state == 'merging'
if is_live and facts[1] == era and facts[2] == generation then
  flushed = math.max(flushed, figure(facts[4]) or 0)
  local from_map = chunks .. ':map'
  redis.call('SET', from_map, ARGV[6])
  redis.call('BITOP', 'OR', chunks, chunks, from_map)
  redis.call('DEL', from_map)
else
  -- Its task may be in a bucket of older data: take it out by what the hash says, then start from nothing.
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
if chunk_total > 0 then
  local last = redis.call('GETBIT', chunks, chunk_count - 1)
  received = (chunk_total - last) * chunk_size + last * (size - (chunk_count - 1) * chunk_size)
end
redis.call('HSET', up, 'era', era, 'generation', generation, 'received', string.format('%d', received),
  'flushed', string.format('%d', flushed), 'chunks', chunk_total, 'chunk_count', chunk_count)

local now = clock_ms(ARGV[1])
if chunk_total == chunk_count then
  if state ~= 'merging' then
    delay_remove(KEYS[4], KEYS[5], up, id)
    redis.call('HSET', up, 'state', 'merging')
    redis.call('HDEL', up, 'pending_since', 'lease_until')
    delay_schedule(KEYS[6], KEYS[7], up, id, now, now)
  elseif not delay_waits(KEYS[6], KEYS[7], up, id) then
    delay_remove(KEYS[6], KEYS[7], up, id)
    delay_schedule(KEYS[6], KEYS[7], up, id, now, now)
  end
  return {'hydrated', received, chunk_total, chunk_count, 'merging'}
end

redis.call('HSET', up, 'state', 'open')
if received ~= flushed then
  -- A task that waits already is left where it is: to hydrate again and again must not put off the flush.
  if not delay_waits(KEYS[4], KEYS[5], up, id) then
    delay_remove(KEYS[4], KEYS[5], up, id)
    redis.call('HSET', up, 'pending_since', string.format('%d', now))
    delay_schedule(KEYS[4], KEYS[5], up, id, now + tonumber(ARGV[11]), now)
  end
else
  delay_remove(KEYS[4], KEYS[5], up, id)
  redis.call('HDEL', up, 'pending_since', 'lease_until')
end
return {'hydrated', received, chunk_total, chunk_count, 'open'}
