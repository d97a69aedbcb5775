-- Pushes the merge task of an upload back by a lease, and notes how far its worker has come.
--
-- KEYS  1 up  2 chunks  3 era  4 due:flush  5 minutes:flush  6 due:merge  7 minutes:merge
-- ARGV  1 now_ms ('' for TIME)  2 upload id  3 lease_ms  4 merged bytes
-- Returns 1, or 0 if the upload is not merging here (any more).
--
-- One script so that a merge that ended meanwhile is not put back into the queue.

if redis.call('HGET', KEYS[1], 'state') ~= 'merging' then return 0 end
redis.call('HSET', KEYS[1], 'merged', ARGV[4])
delay_schedule(KEYS[6], KEYS[7], KEYS[1], ARGV[2], clock_ms(ARGV[1]) + tonumber(ARGV[3]))
return 1
