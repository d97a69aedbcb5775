-- Schedules tasks of a plain queue, or pushes them back.
--
-- KEYS  1 due  2 minutes  3… the task of each
-- ARGV  1 now_ms ('' for TIME)  2 'always', 'sooner' (only a new task, or one that is due later) or 'present' (only one that
--       waits)  3 token of the claim that is extended, which keeps its task ('' for none)  4… task id and delay_ms of each
-- Returns of how many anything was done.
--
-- One script because another process could schedule a task between a look and the scheduling. A claimant loses its task
-- here: something has happened since its claim, so its ack must not take the task away. One that extends its lease keeps
-- it.

local now, mode, token, scheduled = clock_ms(ARGV[1]), ARGV[2], ARGV[3], 0
for n = 3, #KEYS do
  local due = now + tonumber(ARGV[2 * n - 1])
  local waits, due_before, claim = delay_timer(redis.call('HGET', KEYS[n], 'timer'))
  local is_wanted = mode == 'always' or mode == 'present' and waits or mode == 'sooner' and (not waits or due < due_before)
  if is_wanted and (token == '' or claim == ' ' .. token) then
    delay_schedule(KEYS[1], KEYS[2], KEYS[n], ARGV[2 * n - 2], due, now, token == '' and '' or claim)
    scheduled = scheduled + 1
  end
end
return scheduled
