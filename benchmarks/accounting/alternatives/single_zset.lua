-- The delay queue as one ZSet: what the minute buckets are compared with. The functions of `_delay.lua` that uploads use;
-- there is no index; the timers are as lazy.

local POLL_MS = 1000
local function clock_ms(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- All tasks are of one minute.
local function delay_minute()
  return '0'
end

local function delay_timer(text)
  local at, due_ms, own = string.match(text or '', '^(%d+) (%d+)(.*)$')
  if at then return at + 0, due_ms + 0, own end
end

local function delay_text(at, due_ms, own)
  return string.format('%d %d%s', at, due_ms, own)
end

local function delay_wake(due, due_ms, now_ms)
  if due_ms - now_ms < POLL_MS then redis.call('PUBLISH', 'wake' .. string.sub(due, 4), '') end
end

local function delay_drop(due, minutes, minute, ...)
  redis.call('ZREM', due, ...)
end

local function delay_place(due, minutes, id, at, due_ms, now_ms)
  if at and at <= due_ms then return at end
  delay_wake(due, due_ms, now_ms)
  redis.call('ZADD', due, due_ms, id)
  return due_ms
end

local function delay_schedule(due, minutes, task, id, due_ms, now_ms, own)
  local at = delay_place(due, minutes, id, delay_timer(redis.call('HGET', task, 'timer')), due_ms, now_ms)
  redis.call('HSET', task, 'timer', delay_text(at, due_ms, own))
end

local function delay_remove(due, minutes, task, id)
  redis.call('ZREM', due, id)
  redis.call('HSET', task, 'timer', '')
end

local function delay_waits(due, minutes, task, id)
  return redis.call('ZSCORE', due, id)
end

local function delay_claim(due, minutes, task_prefix, now_ms, lease_ms, limit, own, ...)
  local claimed, fields, scores, until_ms = {}, {}, {}, now_ms + lease_ms
  local found = redis.call('ZRANGEBYSCORE', due, '-inf', now_ms, 'LIMIT', 0, limit)
  for _, id in ipairs(found) do
    local task = task_prefix .. id
    local facts = redis.call('HMGET', task, 'timer', ...)
    local _, due_ms, its_own = delay_timer(facts[1])
    if due_ms <= now_ms then
      due_ms, its_own, claimed[#claimed + 1], fields[#fields + 1] = until_ms, own, id, facts
    end
    redis.call('HSET', task, 'timer', delay_text(due_ms, due_ms, its_own))
    scores[#scores + 1], scores[#scores + 2] = due_ms, id
  end
  if #scores > 0 then redis.call('ZADD', due, unpack(scores)) end
  return #found, claimed, fields, 0
end
