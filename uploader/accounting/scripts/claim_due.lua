-- Claims due tasks of a queue of uploads.
--
-- KEYS  1 due  2 minutes
-- ARGV  1 now_ms ('' for TIME)  2 lease_ms  3 number of members to look at  4 task prefix (`up:{sNN}:`)
-- Returns {looked at, late_ms, lease_until}, and for each claimed task its id, generation, received, state. late_ms: how
-- overdue the earliest task was. Unreadable figures give the generation -1, lower than any, so that the worker hydrates the
-- upload.
--
-- One script so that two workers never claim the same task, and so that a claimed task stays in the queue: it waits for the
-- end of the lease, and nothing is lost if its worker dies.

local now, lease, limit = clock_ms(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local own = string.format(' 0 %d', now + lease)
local looked, ids, fields, late_ms =
  delay_claim(KEYS[1], KEYS[2], ARGV[4], now, lease, limit, own, 'figures', 'state')
local reply = {looked, late_ms, now + lease}
for n, id in ipairs(ids) do
  local received, _, _, _, generation = read_figures(fields[n][2])
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = id, generation or -1, received or 0, fields[n][3] or ''
end
return reply
