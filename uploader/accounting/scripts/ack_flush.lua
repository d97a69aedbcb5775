-- Acknowledges a batch of flushed uploads: `value` bytes of each are in the database now.
--
-- KEYS  1 due:flush  2 minutes:flush
-- ARGV  1 task prefix (`up:{sNN}:`), then for each upload: id, generation, value, lease_until of the claim
-- Returns how many tasks were taken out.
--
-- One script because the comparison with `received` and the removal of the task must not be torn apart: a chunk that
-- landed in between would wait for nobody. A stale worker's ack does nothing: another generation is ignored, and so is
-- more than was received (Redis fell back to an older state meanwhile); `flushed` never goes down.

local prefix, removed = ARGV[1], 0
for i = 2, #ARGV, 4 do
  local id, generation, value = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local up = prefix .. id
  local facts = redis.call('HMGET', up, 'generation', 'received', 'flushed', 'state', 'lease_until')
  if facts[1] == generation and value <= tonumber(facts[2]) then
    local flushed = math.max(tonumber(facts[3]), value)
    redis.call('HSET', up, 'flushed', string.format('%d', flushed))
    if facts[4] == 'open' then
      -- The lease of a worker that claimed it after this one is not this one's to give up.
      if facts[5] == ARGV[i + 3] then redis.call('HDEL', up, 'lease_until') end
      if tonumber(facts[2]) == flushed then
        delay_remove(KEYS[1], KEYS[2], up, id)
        redis.call('HDEL', up, 'pending_since')
        removed = removed + 1
      end
    end
  end
end
return removed
