-- Acknowledges a batch of flushed uploads: `value` bytes of each are in the database now.
--
-- KEYS  1 due:flush  2 minutes:flush
-- ARGV  1 task prefix (`up:{sNN}:`), then for each upload: id, generation, value, lease_until of the claim
-- Returns how many tasks were taken out.
--
-- One script because a chunk that was recorded between the comparison with `received` and the removal of the task would
-- have no task that flushes it. The ack of a stale worker does nothing: the script ignores another generation, and a value
-- above `received` (Redis fell back to an older state meanwhile). `flushed` never goes down.

local prefix, removed, done = ARGV[1], 0, {}
for i = 2, #ARGV, 4 do
  local id, generation, value = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local up = prefix .. id
  local facts = redis.call('HMGET', up, 'generation', 'received', 'flushed', 'state', 'lease_until', 'due_minute')
  if facts[1] == generation and value <= (figure(facts[2]) or -1) then
    local flushed = math.max(figure(facts[3]) or 0, value)
    redis.call('HSET', up, 'flushed', string.format('%d', flushed))
    if facts[4] == 'open' then
      local over = {}
      -- If another worker has claimed the task since, its lease stays.
      if facts[5] == ARGV[i + 3] then over[1] = 'lease_until' end
      if tonumber(facts[2]) == flushed then
        over[#over + 1] = 'pending_since'
        if facts[6] then
          over[#over + 1] = 'due_minute'
          local ids = done[facts[6]] or {}
          ids[#ids + 1], done[facts[6]] = id, ids
        end
        removed = removed + 1
      end
      if #over > 0 then redis.call('HDEL', up, unpack(over)) end
    end
  end
end
for minute, ids in pairs(done) do delay_drop(KEYS[1], KEYS[2], minute, unpack(ids)) end
return removed
