-- The delay queue. This prelude is put before every script, so that a script about uploads and the plain verbs of the
-- queue share one implementation.
--
-- A task is a hash that knows its bucket (field due_minute). It waits in exactly one *minute bucket*, the ZSet
-- `due..':'..minute` with the due time in ms as score, and `minutes` is the index of the buckets that are not empty.
-- A task changes bucket only when its minute changes: pushing it back within the minute is one ZADD.

local MINUTE_MS = 60000
-- A worker looks at least this often; a task that is due sooner is announced to workers that sleep.
local POLL_MS = 1000

local function clock_ms(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Takes ids out of a bucket.
local function delay_drop(due, minutes, minute, ...)
  local bucket = due .. ':' .. minute
  redis.call('ZREM', bucket, ...)
  if redis.call('EXISTS', bucket) == 0 then redis.call('ZREM', minutes, minute) end
end

local function delay_remove(due, minutes, task, id)
  local minute = redis.call('HGET', task, 'due_minute')
  if not minute then return end
  delay_drop(due, minutes, minute, id)
  redis.call('HDEL', task, 'due_minute')
end

-- Whether the index names a bucket, and so that it is looked at when it is due.
local function delay_indexed(minutes, minute)
  local score = redis.call('ZSCORE', minutes, minute)
  return score and tonumber(score) == tonumber(minute)
end

-- Whether a task waits where its hash says, due in that minute, in a bucket that the index names.
local function delay_waits(due, minutes, task, id)
  local minute = redis.call('HGET', task, 'due_minute')
  local due_ms = minute and redis.call('ZSCORE', due .. ':' .. minute, id)
  return due_ms and math.floor(tonumber(due_ms) / MINUTE_MS) == tonumber(minute) and delay_indexed(minutes, minute)
end

-- A task that is due soon after now_ms wakes the workers of the queue, which listen on the channel `wake:{sNN}:<queue>`.
local function delay_wake(due, due_ms, now_ms)
  if due_ms - now_ms < POLL_MS then redis.call('PUBLISH', 'wake' .. string.sub(due, 4), '') end
end

local function delay_minute(due_ms)
  return string.format('%d', math.floor(due_ms / MINUTE_MS))
end

-- Schedules a task or pushes it back (or forward). A caller that has read its due_minute already may pass it as `before`.
local function delay_schedule(due, minutes, task, id, due_ms, now_ms, before)
  delay_wake(due, due_ms, now_ms)
  local minute = delay_minute(due_ms)
  if before == nil then before = redis.call('HGET', task, 'due_minute') end
  if before == minute then
    redis.call('ZADD', due .. ':' .. minute, due_ms, id)
    return
  end
  if before then delay_drop(due, minutes, before, id) end
  redis.call('ZADD', due .. ':' .. minute, due_ms, id)
  redis.call('ZADD', minutes, minute, minute)
  redis.call('HSET', task, 'due_minute', minute)
end

-- Claims at most `limit` due tasks from the oldest buckets. Each is scheduled again for the end of the lease, so that a
-- lease is a delay like any other, and gets further fields (names and values), which tell its claimant. A member whose
-- hash does not name this bucket is left over and is dropped. Returns the ids. Tasks change buckets together, because that
-- halves the work.
local function delay_claim(due, minutes, task_prefix, now_ms, lease_ms, limit, ...)
  local claimed, until_ms = {}, now_ms + lease_ms
  local next_minute = delay_minute(until_ms)
  local oldest = redis.call('ZRANGEBYSCORE', minutes, '-inf', math.floor(now_ms / MINUTE_MS), 'LIMIT', 0, limit)
  for _, minute in ipairs(oldest) do
    local room = limit - #claimed
    if room == 0 then break end
    local leaving, scores = {}, {}
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', due .. ':' .. minute, '-inf', now_ms, 'LIMIT', 0, room)) do
      local task = task_prefix .. id
      local waits = redis.call('HGET', task, 'due_minute') == minute
      if waits then
        redis.call('HSET', task, 'due_minute', next_minute, ...)
        claimed[#claimed + 1] = id
        scores[#scores + 1], scores[#scores + 2] = until_ms, id
      end
      if not waits or minute ~= next_minute then leaving[#leaving + 1] = id end
    end
    if #scores > 0 then
      delay_wake(due, until_ms, now_ms)
      redis.call('ZADD', due .. ':' .. next_minute, unpack(scores))
      redis.call('ZADD', minutes, next_minute, next_minute)
    end
    if #leaving > 0 then delay_drop(due, minutes, minute, unpack(leaving)) end
  end
  return claimed
end
