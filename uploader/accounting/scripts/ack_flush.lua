-- Acknowledges a batch of flushed uploads: the database has `value` bytes of each now.
--
-- KEYS  1 due:flush  2 minutes:flush
-- ARGV  1 task prefix (`up:{sNN}:`), then for each upload: id, generation, value, lease_until of the claim
-- Returns the number of removed tasks.
--
-- One script because a chunk recorded between the comparison with `received` and the removal of the task would have no task
-- to flush it. The ack of a stale worker does nothing: the script ignores another generation, and a value above `received`
-- (Redis fell back to an older state meanwhile). `flushed` never falls.

local prefix, removed, done = ARGV[1], 0, {}
for i = 2, #ARGV, 4 do
  local id, value = ARGV[i], tonumber(ARGV[i + 2])
  local up = prefix .. id
  local facts = redis.call('HMGET', up, 'figures', 'timer', 'state')
  local received, flushed, chunks, chunk_count, generation = read_figures(facts[1])
  if received and generation == tonumber(ARGV[i + 1]) and value <= received then
    local timer = facts[2] or ''
    local at, due_ms, since, lease_until = read_timer(timer)
    flushed = math.max(flushed, value)
    if facts[3] == 'open' and at then
      if received == flushed then
        local minute = delay_minute(at)
        local ids = done[minute] or {}
        ids[#ids + 1], done[minute] = id, ids
        timer, removed = '', removed + 1
      elseif lease_until == tonumber(ARGV[i + 3]) then  -- if another worker has claimed the task since, its lease stays
        timer = timer_text(at, due_ms, since, 0)
      end
    end
    redis.call('HSET', up, 'figures', figures_text(received, flushed, chunks, chunk_count, generation), 'timer', timer)
  end
end
for minute, ids in pairs(done) do delay_drop(KEYS[1], KEYS[2], minute, unpack(ids)) end
return removed
