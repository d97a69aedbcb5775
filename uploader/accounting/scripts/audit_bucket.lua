-- Looks at some tasks of a minute bucket of a queue of uploads, and at the bucket's entry in the index, for the reconciler.
--
-- KEYS  1 due  2 minutes
-- ARGV  1 task prefix (`up:{sNN}:`)  2 state of the uploads in this queue (open, merging)  3 epoch minute  4 cursor
--       5 number of members to look at
-- Returns {next cursor, whether the bucket exists, whether the index names it, tasks, strays}: tasks are the ids of uploads
-- whose hash names this bucket, strays are all other ids. The cursor is '0' at the end.
--
-- One script because a task may leave between the reads of its bucket and of its hash. It works in steps, to be short.

local minute, bucket = ARGV[3], KEYS[1] .. ':' .. ARGV[3]
local step = redis.call('ZSCAN', bucket, ARGV[4], 'COUNT', ARGV[5])
local tasks, strays = {}, {}
for i = 1, #step[2], 2 do
  local list = upload_is_in(ARGV[1] .. step[2][i], minute, ARGV[2]) and tasks or strays
  list[#list + 1] = step[2][i]
end
local exists, indexed = redis.call('EXISTS', bucket), delay_indexed(KEYS[2], minute)
-- For a missing bucket, any entry in the index is wrong, whatever its score.
if exists == 0 then indexed = redis.call('ZSCORE', KEYS[2], minute) end
return {step[1], exists, indexed and 1 or 0, tasks, strays}
