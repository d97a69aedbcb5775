-- The delay queue as one ZSet: what the minute buckets are compared with. The functions of `_delay.lua` that uploads use;
-- there is no index, and the task's due_minute never changes.

local POLL_MS = 1000

local function clock_ms(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function delay_drop(due, minutes, minute, ...)
  redis.call('ZREM', due, ...)
end

local function delay_remove(due, minutes, task, id)
  redis.call('ZREM', due, id)
  redis.call('HDEL', task, 'due_minute')
end

local function delay_waits(due, minutes, task, id)
  return redis.call('ZSCORE', due, id)
end

local function delay_schedule(due, minutes, task, id, due_ms, now_ms, before)
  if due_ms - now_ms < POLL_MS then redis.call('PUBLISH', 'wake' .. string.sub(due, 4), '') end
  redis.call('ZADD', due, due_ms, id)
  if not before then redis.call('HSET', task, 'due_minute', '0') end
end

local function delay_claim(due, minutes, task_prefix, now_ms, lease_ms, limit, ...)
  local claimed, scores = redis.call('ZRANGEBYSCORE', due, '-inf', now_ms, 'LIMIT', 0, limit), {}
  for _, id in ipairs(claimed) do
    redis.call('HSET', task_prefix .. id, ...)
    scores[#scores + 1], scores[#scores + 2] = now_ms + lease_ms, id
  end
  if #scores > 0 then redis.call('ZADD', due, unpack(scores)) end
  return claimed
end
