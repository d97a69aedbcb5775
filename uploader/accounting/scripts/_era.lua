-- The era: what makes loss of Redis visible. A restart, a rollback and a failover change the replication id; FLUSHALL
-- and a restore of older data change the token, which is random, given by the caller and set only if absent (Lua's
-- math.random starts from the same seed everywhere). Figures that were written in another era are of unknown age.

local function current_era(era_key, token)
  local stored = redis.call('GET', era_key)
  if not stored then
    redis.call('SET', era_key, token)
    stored = token
  end
  return string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') .. ':' .. stored
end
