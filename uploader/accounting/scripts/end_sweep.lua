-- Notes that a shard was swept.
--
-- KEYS  1 era  2 swept (the era of the last sweep)  3 sweeping (the process that sweeps now)
-- ARGV  1 era token  2 claimant  3 the swept era
-- Returns 1; 0 if the era has moved meanwhile: then the sweep begins again.
--
-- One script because the era could move between the comparison and the note, and then the new era would never be swept.

if redis.call('GET', KEYS[3]) == ARGV[2] then redis.call('DEL', KEYS[3]) end
if current_era(KEYS[1], ARGV[1]) ~= ARGV[3] then return 0 end
redis.call('SET', KEYS[2], ARGV[3])
return 1
