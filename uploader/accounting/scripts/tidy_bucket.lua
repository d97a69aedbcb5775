-- Tidies a minute bucket of a queue of uploads: removes strays, and lets the index name the bucket exactly if it exists.
--
-- KEYS  1 due  2 minutes
-- ARGV  1 task prefix (`up:{sNN}:`)  2 state of the uploads in this queue (open, merging)  3 epoch minute, then the ids of
--       possible strays
-- Returns the number of removed strays.
--
-- One script because a stray may have become a task, or the bucket may have filled, since the reconciler looked.

local minute, bucket, gone = ARGV[3], KEYS[1] .. ':' .. ARGV[3], 0
for i = 4, #ARGV do
  if not upload_is_in(ARGV[1] .. ARGV[i], minute, ARGV[2]) then gone = gone + redis.call('ZREM', bucket, ARGV[i]) end
end
if redis.call('EXISTS', bucket) == 1 and string.match(minute, '^%d+$') then
  redis.call('ZADD', KEYS[2], minute, minute)
else
  redis.call('ZREM', KEYS[2], minute)
end
return gone
