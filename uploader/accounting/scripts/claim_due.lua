-- Claims due tasks of one queue of uploads.
--
-- KEYS  1 due  2 minutes
-- ARGV  1 now_ms ('' for TIME)  2 lease_ms  3 limit  4 task prefix (`up:{sNN}:`)
-- Returns a list of {id, generation, received, state, lease_until, waited_ms}; waited_ms is how long its first pending
-- byte has waited, or 0 where that is not known.
--
-- One script so that no two workers claim one task, and so that a claimed task is never out of the queue: it waits for
-- the end of the lease, and a worker that dies has lost nothing.

local now, lease, limit, prefix = clock_ms(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local until_ms = string.format('%d', now + lease)
local claims = {}
for _, id in ipairs(delay_claim(KEYS[1], KEYS[2], prefix, now, lease, limit, 'lease_until', until_ms)) do
  local up = prefix .. id
  local facts = redis.call('HMGET', up, 'generation', 'received', 'state', 'pending_since')
  redis.call('HDEL', up, 'pending_since')
  local waited = facts[4] and now - tonumber(facts[4]) or 0
  claims[#claims + 1] = {id, tonumber(facts[1] or 0), tonumber(facts[2] or 0), facts[3] or '', now + lease, waited}
end
return claims
