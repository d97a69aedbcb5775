-- Removes a task from a plain queue: cancels it, or acknowledges it for the worker that claimed it.
--
-- KEYS  1 due  2 minutes  3 task
-- ARGV  1 task id  2 token of the claim ('' to cancel in any state)
-- Returns 1; 0 if the task does not exist, or no longer belongs to the claim.
--
-- One script so that the ack of a worker that lost its lease can't remove a task that another worker has claimed or that was
-- scheduled again.

local waits, _, claim = delay_timer(redis.call('HGET', KEYS[3], 'timer'))
if not waits or ARGV[2] ~= '' and claim ~= ' ' .. ARGV[2] then return 0 end
delay_remove(KEYS[1], KEYS[2], KEYS[3], ARGV[1])
redis.call('DEL', KEYS[3])
return 1
