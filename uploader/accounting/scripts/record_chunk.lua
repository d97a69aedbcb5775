-- Records that a chunk is on disk: the one round trip of a chunk.
--
-- KEYS  1 up  2 chunks  3 era  4 due:flush  5 minutes:flush  6 due:merge  7 minutes:merge
-- ARGV  1 now_ms ('' for TIME)  2 era token  3 upload id  4 chunk number  5 length in bytes
--       6 quiet_ms  7 max_delay_ms  8 max_pending_bytes  9 lease_ms
-- Returns {word, received, chunks, chunk_count, state}; word is one of
--   recorded, duplicate     the chunk counts (now, or did before)
--   rehydrate               Redis does not know this upload in this era: hydrate, then record again
--   merging                 closed to chunks, its merge is armed
--   done, cancelled, expired, failed   closed
--
-- One script because the bit, the sum, the delay task and the settling with the last bit must change together: between
-- any two of them a crash would lose or invent bytes.

local up, chunks, id, number = KEYS[1], KEYS[2], ARGV[3], ARGV[4]
local facts = redis.call('HMGET', up, 'era', 'state', 'received', 'flushed', 'pending_since', 'lease_until',
  'chunks', 'chunk_count', 'due_minute')
local era, state, received, flushed, pending_since, lease_until = unpack(facts, 1, 6)
received, flushed = figure(received), figure(flushed)
local chunk_total, chunk_count, due_minute = figure(facts[7]), figure(facts[8]), facts[9]

if ENDED[state] then return {state, 0, 0, 0, state} end
local is_whole = (state == 'open' or state == 'merging') and received and flushed and chunk_total and chunk_count
if era ~= current_era(KEYS[3], ARGV[2]) or not is_whole then return {'rehydrate', 0, 0, 0, ''} end

local now = clock_ms(ARGV[1])
local lease = tonumber(ARGV[9])

if state == 'merging' then
  if not due_minute then delay_schedule(KEYS[6], KEYS[7], up, id, now + lease, now) end
  return {'merging', received, chunk_total, chunk_count, state}
end

if redis.call('SETBIT', chunks, number, 1) == 1 then
  return {'duplicate', received, chunk_total, chunk_count, state}
end
received, chunk_total = received + tonumber(ARGV[5]), chunk_total + 1
redis.call('HSET', up, 'received', string.format('%d', received), 'chunks', chunk_total)

if chunk_total == chunk_count then
  delay_remove(KEYS[4], KEYS[5], up, id)
  redis.call('HSET', up, 'state', 'merging')
  redis.call('HDEL', up, 'pending_since', 'lease_until')
  delay_schedule(KEYS[6], KEYS[7], up, id, now + lease, now)
  return {'recorded', received, chunk_total, chunk_count, 'merging'}
end

if not pending_since or pending_since == '' then
  pending_since = now
  redis.call('HSET', up, 'pending_since', string.format('%d', now))
end
local due = math.min(now + tonumber(ARGV[6]), (figure(pending_since) or now) + tonumber(ARGV[7]))
if received - flushed >= tonumber(ARGV[8]) then due = now end
-- The worker that claimed the task may be dead: further chunks must not push the end of its lease back for ever.
if lease_until then due = math.min(due, figure(lease_until) or due) end
delay_schedule(KEYS[4], KEYS[5], up, id, due, now, due_minute)
return {'recorded', received, chunk_total, chunk_count, state}
