-- Schedules tasks of a plain queue, or pushes them back.
--
-- KEYS  1 due  2 minutes  3… the hash of each task
-- ARGV  1 now_ms ('' for TIME)  2 'always', 'sooner' (only new tasks and tasks that are due later) or 'present' (only
--       waiting tasks)  3 token of the claim to extend, which keeps its task ('' for none)  4… id and delay_ms of each task
-- Returns the number of tasks that were scheduled.
--
-- One script because another process could schedule a task between the read and the write. A claimant loses its task here,
-- because something has happened since its claim and its ack must not remove the task. A claimant that extends its lease
-- keeps the task.

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
