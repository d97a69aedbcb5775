-- The delay queue, shared by the scripts about uploads and by the plain queues. `redis.py` prepends the definitions that a
-- script uses.
--
-- A task is a hash. Its field `timer` is decimal text: the time where it waits (`at`, ms), the time when it is due (ms), and
-- text of its owner; '' for a task that does not wait. It waits in exactly one *minute bucket*, the ZSet `due..':'..minute`
-- of the minute of `at`, with the score `at`. `minutes` is the index of the buckets that are not empty.
--
-- A timer is lazy: a push back changes only the hash, and the task stays in its bucket. `at` may be earlier than the due
-- time, never later. A claim reads the hash, and schedules a task anew that is not due yet.

local MINUTE_MS = 60000
-- While any task waits, a worker looks at least this often. A task that is due sooner is announced to sleeping workers. So
-- is the first task of an empty queue, because there workers look seldom.
local POLL_MS = 1000

local function clock_ms(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function delay_minute(at)
  return string.format('%d', math.floor(at / MINUTE_MS))
end

-- Returns where a task waits, its due time, and the text of its owner; nil if it does not wait or the timer is unreadable.
local function delay_timer(text)
  local at, due_ms, own = string.match(text or '', '^(%d+) (%d+)(.*)$')
  if at then return at + 0, due_ms + 0, own end
end

local function delay_text(at, due_ms, own)
  return string.format('%d %d%s', at, due_ms, own)
end

-- Removes ids from a bucket.
local function delay_drop(due, minutes, minute, ...)
  local bucket = due .. ':' .. minute
  redis.call('ZREM', bucket, ...)
  if redis.call('EXISTS', bucket) == 0 then redis.call('ZREM', minutes, minute) end
end

-- Wakes the workers of the queue by the channel `wake:{sNN}:<queue>`. Without the right to publish there, workers find the
-- task at their next look.
local function delay_wake(due)
  redis.pcall('PUBLISH', 'wake' .. string.sub(due, 4), '')
end

-- Puts a task that waits at `at` (nil: nowhere) where a worker finds it in time; moves it only if `at` is too late. Returns
-- where the task waits now. The caller writes the timer.
local function delay_place(due, minutes, id, at, due_ms, now_ms)
  if at and at <= due_ms then return at end
  if due_ms - now_ms < POLL_MS or redis.call('EXISTS', minutes) == 0 then delay_wake(due) end
  local minute, before = delay_minute(due_ms), at and delay_minute(at)
  if before and before ~= minute then delay_drop(due, minutes, before, id) end
  redis.call('ZADD', due .. ':' .. minute, due_ms, id)
  if before ~= minute then redis.call('ZADD', minutes, minute, minute) end
  return due_ms
end

-- Schedules a task, or moves it to a later or an earlier time. `own`: text after its timer.
local function delay_schedule(due, minutes, task, id, due_ms, now_ms, own)
  local at = delay_timer(redis.call('HGET', task, 'timer'))
  at = delay_place(due, minutes, id, at, due_ms, now_ms)
  redis.call('HSET', task, 'timer', delay_text(at, due_ms, own))
end

local function delay_remove(due, minutes, task, id)
  local at = delay_timer(redis.call('HGET', task, 'timer'))
  if at then delay_drop(due, minutes, delay_minute(at), id) end
  redis.call('HSET', task, 'timer', '')
end

-- Returns whether the index names a bucket with the right score, so that workers find the bucket in time.
local function delay_indexed(minutes, minute)
  local score = redis.call('ZSCORE', minutes, minute)
  return score and tonumber(score) == tonumber(minute)
end

-- Returns whether a task waits where its hash says, not later than its due time, in a bucket that the index names.
local function delay_waits(due, minutes, task, id)
  local at, due_ms = delay_timer(redis.call('HGET', task, 'timer'))
  if not at then return false end
  local minute = delay_minute(at)
  local score = tonumber(redis.call('ZSCORE', due .. ':' .. minute, id) or '')
  return score and score <= due_ms and delay_minute(score) == minute and delay_indexed(minutes, minute)
end

-- Claims due tasks from the oldest buckets; looks at `limit` members at most. A task that is not due yet by its hash moves
-- to its due time. A claimed task is scheduled for the end of the lease, with `own` in its timer, which identifies the
-- claimant. A task with an unreadable timer is claimed, so that a worker looks at it. A member whose hash names another
-- bucket is left over, and is dropped. Returns the number of members looked at, the claimed ids, the further fields of their
-- hashes, and how overdue the earliest task is. Tasks change buckets together, because that halves the work.
local function delay_claim(due, minutes, task_prefix, now_ms, lease_ms, limit, own, ...)
  local looked, claimed, fields, late_ms = 0, {}, {}, 0
  local until_ms, moved = now_ms + lease_ms, {}
  local leased, leased_minute = delay_text(until_ms, until_ms, own), delay_minute(until_ms)
  local oldest = redis.call('ZRANGEBYSCORE', minutes, '-inf', math.floor(now_ms / MINUTE_MS), 'LIMIT', 0, limit)
  for _, minute in ipairs(oldest) do
    if looked == limit then break end
    local leaving, number = {}, tonumber(minute)
    local found = redis.call('ZRANGEBYSCORE', due .. ':' .. minute, '-inf', now_ms, 'LIMIT', 0, limit - looked)
    for _, id in ipairs(found) do
      local task = task_prefix .. id
      local facts = redis.call('HMGET', task, 'timer', ...)
      local at, due_ms, its_own = delay_timer(facts[1])
      local is_here, is_unreadable = at and math.floor(at / MINUTE_MS) == number, not at and facts[1] and facts[1] ~= ''
      local next_ms, next_minute = nil, nil
      if is_unreadable or is_here and due_ms <= now_ms then
        next_ms, next_minute = until_ms, leased_minute
        redis.call('HSET', task, 'timer', leased)
        claimed[#claimed + 1], fields[#fields + 1] = id, facts
        late_ms = math.max(late_ms, now_ms - (due_ms or now_ms))
      elseif is_here then
        next_ms, next_minute = due_ms, delay_minute(due_ms)
        redis.call('HSET', task, 'timer', delay_text(due_ms, due_ms, its_own))
      end
      if next_ms then
        local into = moved[next_minute] or {}
        into[#into + 1], into[#into + 2], moved[next_minute] = next_ms, id, into
      end
      if next_minute ~= minute then leaving[#leaving + 1] = id end
    end
    looked = looked + #found
    if #leaving > 0 then delay_drop(due, minutes, minute, unpack(leaving)) end
  end
  for minute, scores in pairs(moved) do
    redis.call('ZADD', due .. ':' .. minute, unpack(scores))
    redis.call('ZADD', minutes, minute, minute)
  end
  if #claimed > 0 and lease_ms < POLL_MS then delay_wake(due) end
  return looked, claimed, fields, late_ms
end
