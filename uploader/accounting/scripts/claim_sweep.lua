-- Claims the sweep of a shard: after a loss of Redis, one process rebuilds the uploads that no client touches.
--
-- KEYS  1 era  2 swept (the era of the last sweep)  3 sweeping (the process that sweeps now)
-- ARGV  1 era token  2 claimant  3 lease_ms
-- Returns the era to sweep; '' if it was swept, or another process sweeps it.
--
-- One script so that one worker sweeps, and another takes over if that worker dies.

local era = current_era(KEYS[1], ARGV[1])
if redis.call('GET', KEYS[2]) == era then return '' end
local claimant = redis.call('GET', KEYS[3])
if claimant and claimant ~= ARGV[2] then return '' end
redis.call('SET', KEYS[3], ARGV[2], 'PX', ARGV[3])
return era
