-- Tries each command that this program sends to Redis, on keys that nothing else uses, to find the commands that Redis would
-- refuse.
--
-- KEYS  1 up  2 a key of another kind, then one key of each further kind; these never exist, but need rights
-- ARGV  1 ttl_ms  2 wake channel
-- Returns the rights that the user of Redis lacks, as ACL SETUSER takes them; or the error of a write; or the version of a
-- Redis before 7.0, which does not tell scripts its version and has no `SET` with `NX` and `GET`.
--
-- One script because it is one round trip, and because Redis may refuse a command only in scripts.

local up, none, lacking, failure = KEYS[1], KEYS[2], {}, nil

-- Only the first write changes anything: the others find no key, or a key of another type.
local function try(name, ...)
  local reply = redis.pcall(name, ...)
  local err = type(reply) == 'table' and reply.err
  if not err then return end
  if string.find(err, ' a channel', 1, true) then
    lacking[#lacking + 1] = '&wake:*'
  elseif string.find(err, 'ACL failure', 1, true) or string.find(err, 'Unknown', 1, true) then
    lacking[#lacking + 1] = '+' .. string.lower(name)
  elseif not string.find(err, 'WRONGTYPE', 1, true) then
    failure = failure or reply
  end
end

try('TIME')
try('HSET', up, 'state', 'probe')
try('PEXPIRE', up, ARGV[1])
try('EXPIRE', none, 1)
try('INFO', 'replication')
try('PUBLISH', ARGV[2], '')
try('PING')
try('GET', none)
try('SET', none, '', 'XX')
try('GETDEL', none)
try('DEL', none)
try('UNLINK', none)
try('EXISTS', none)
try('INCR', up)
try('SETBIT', up, 0, 1)
try('GETBIT', none, 0)
try('BITCOUNT', none)
try('BITOP', 'NOT', none, none)
try('BITPOS', none, 1)
try('HGET', none, '')
try('HMGET', none, '')
try('HDEL', none, '')
try('ZADD', none, 'XX', 0, '')
try('ZINCRBY', up, 1, '')
try('ZREM', none, '')
try('ZCARD', none)
try('ZSCORE', none, '')
try('ZRANGE', none, 0, -1)
try('ZRANGEBYSCORE', none, 0, 0)
try('ZREMRANGEBYSCORE', none, 0, 0)
try('ZREMRANGEBYRANK', none, 0, 0)
try('ZSCAN', none, 0)
try('SCAN', 0, 'COUNT', 1)

if not redis.REDIS_VERSION_NUM then
  return string.match(redis.call('INFO', 'server'), 'redis_version:(%S+)') or 'unknown'
end
if #lacking == 0 and failure then return failure end
return lacking
