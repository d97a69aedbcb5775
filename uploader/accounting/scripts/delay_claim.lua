-- Claims due tasks of a plain queue.
--
-- KEYS  1 due  2 minutes
-- ARGV  1 now_ms ('' for TIME)  2 lease_ms  3 number of members to look at  4 task prefix (`task:{sNN}:<queue>:`)
--       5 token of this claim
-- Returns {looked at, ids}.
--
-- One script so that two workers never claim the same task, and so that a claimed task stays in the queue: it waits for the
-- end of the lease, and nothing is lost if its worker dies.

local now, lease, limit = clock_ms(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local looked, ids = delay_claim(KEYS[1], KEYS[2], ARGV[4], now, lease, limit, ' ' .. ARGV[5])
return {looked, ids}
