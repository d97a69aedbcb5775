-- The delay queue as sixteen ZSets, a task in the one that a hash of its id names: what the minute buckets are compared
-- with. The functions of `_delay.lua` that uploads use; there is no index, and the task's due_minute never changes.

local POLL_MS = 1000
local ZSETS = 16

local function clock_ms(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The last digit of these ids is spread evenly: it is a hash already.
local function delay_part(due, id)
  return due .. ':' .. tonumber(string.sub(id, -1), 16)
end

local function delay_drop(due, minutes, minute, ...)
  for _, id in ipairs({...}) do redis.call('ZREM', delay_part(due, id), id) end
end

local function delay_remove(due, minutes, task, id)
  redis.call('ZREM', delay_part(due, id), id)
  redis.call('HDEL', task, 'due_minute')
end

local function delay_waits(due, minutes, task, id)
  return redis.call('ZSCORE', delay_part(due, id), id)
end

local function delay_schedule(due, minutes, task, id, due_ms, now_ms, before)
  if due_ms - now_ms < POLL_MS then redis.call('PUBLISH', 'wake' .. string.sub(due, 4), '') end
  redis.call('ZADD', delay_part(due, id), due_ms, id)
  if not before then redis.call('HSET', task, 'due_minute', '0') end
end

-- Of each part as much as is due, in turn: the oldest of all can't be told without a look into every one.
local function delay_claim(due, minutes, task_prefix, now_ms, lease_ms, limit, ...)
  local claimed = {}
  for part = 0, ZSETS - 1 do
    local room, scores = math.min(math.ceil(limit / ZSETS), limit - #claimed), {}
    local bucket = due .. ':' .. part
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', bucket, '-inf', now_ms, 'LIMIT', 0, room)) do
      redis.call('HSET', task_prefix .. id, ...)
      claimed[#claimed + 1] = id
      scores[#scores + 1], scores[#scores + 2] = now_ms + lease_ms, id
    end
    if #scores > 0 then redis.call('ZADD', bucket, unpack(scores)) end
  end
  return claimed
end
