-- Schedules a task of a plain queue, or pushes it back.
--
-- KEYS  1 due  2 minutes  3 task
-- ARGV  1 now_ms ('' for TIME)  2 task id  3 delay_ms  4 'always', 'absent' (only a new task) or 'present' (only one
--       that waits)
-- Returns 1, or 0 if nothing was done.
--
-- One script because another process could schedule the task between a look and the scheduling. A claimant loses its
-- task here: something has happened since its claim, so its ack must not take the task away.

local waits = delay_timer(redis.call('HGET', KEYS[3], 'timer'))
if ARGV[4] == 'absent' and waits or ARGV[4] == 'present' and not waits then return 0 end
local now = clock_ms(ARGV[1])
delay_schedule(KEYS[1], KEYS[2], KEYS[3], ARGV[2], now + tonumber(ARGV[3]), now, '')
return 1
