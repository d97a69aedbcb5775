-- The era makes a loss of Redis visible. A restart, a rollback and a failover change the replication id. FLUSHALL and a
-- restore of older data change the token, which is random, given by the caller and set only if absent (Lua's math.random
-- starts from the same seed everywhere). A version that writes keys in another format has another FORMAT. Data from another
-- era is of unknown age or unreadable.

local function current_era(era_key, token)
  local stored = redis.call('GET', era_key)
  if not stored then
    redis.call('SET', era_key, token)
    stored = token
  end
  -- A plain search: a pattern would be tried at every position.
  local said = redis.call('INFO', 'replication')
  local _, before = string.find(said, 'master_replid:', 1, true)
  return string.sub(said, before + 1, before + 40) .. ':' .. stored .. ':' .. FORMAT
end
