-- Claims due tasks of one queue of uploads.
--
-- KEYS  1 due  2 minutes
-- ARGV  1 now_ms ('' for TIME)  2 lease_ms  3 limit  4 task prefix (`up:{sNN}:`)
-- Returns a list of {id, generation, received, state, lease_until, late_ms}; late_ms is by how much the earliest of them
-- was overdue. An upload whose figures are none has generation -1: older than any, so that it is hydrated.
--
-- One script so that no two workers claim one task, and so that a claimed task is never out of the queue: it waits for
-- the end of the lease, and a worker that dies has lost nothing.

local now, lease, limit, prefix = clock_ms(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local marks = {'lease_until', string.format('%d', now + lease), 'pending_since', ''}
local oldest = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
local earliest = oldest and redis.call('ZRANGE', KEYS[1] .. ':' .. oldest, 0, 0, 'WITHSCORES')[2]
local late = math.max(0, now - tonumber(earliest or now))
local claims = {}
for _, id in ipairs(delay_claim(KEYS[1], KEYS[2], prefix, now, lease, limit, unpack(marks))) do
  local facts = redis.call('HMGET', prefix .. id, 'generation', 'received', 'state')
  local generation, received = figure(facts[1] or '0'), figure(facts[2] or '0')
  if not generation or not received then generation, received = -1, 0 end
  claims[#claims + 1] = {id, generation, received, facts[3] or '', now + lease, late}
end
return claims
