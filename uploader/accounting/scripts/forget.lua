-- Drops a closed upload. Leaves a tombstone with its last state, so that a late chunk is refused without the database.
--
-- KEYS  1 up  2 chunks  3 era  4 due:flush  5 minutes:flush  6 due:merge  7 minutes:merge
-- ARGV  1 upload id  2 last state (done, cancelled, expired, failed, consumed)  3 seconds that the tombstone stays; 0 for no
--       tombstone
-- Returns 1.
--
-- One script so that no task of a closed upload is left: the hash, which names the task's bucket, goes last.

local up = KEYS[1]
if redis.call('HGET', up, 'state') == 'merging' then
  delay_remove(KEYS[6], KEYS[7], up, ARGV[1])
else
  delay_remove(KEYS[4], KEYS[5], up, ARGV[1])
end
redis.call('DEL', up, KEYS[2])
redis.call('HSET', up, 'state', ARGV[2])
redis.call('EXPIRE', up, ARGV[3])
return 1
