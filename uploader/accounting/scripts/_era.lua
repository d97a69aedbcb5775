-- The era: what makes loss of Redis visible. A restart, a rollback and a failover change the replication id; FLUSHALL
-- and a restore of older data change the token, which is random, given by the caller and set only if absent (Lua's
-- math.random starts from the same seed everywhere). Figures that were written in another era are of unknown age.

-- A file that Redis read at its start may have held another byte than was written there: a figure that is none is nil, and a
-- state that is no word is none.
local function figure(text)
  return text and string.match(text, '^%d+$') and tonumber(text)
end

local ENDED = {done = true, cancelled = true, expired = true, failed = true}

local function current_era(era_key, token)
  local stored = redis.call('GET', era_key)
  if not stored then
    redis.call('SET', era_key, token)
    stored = token
  end
  return string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') .. ':' .. stored
end
