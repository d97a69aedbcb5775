-- Looks at some tasks of one minute bucket of a queue of uploads, and at its place in the index, for the reconciler.
--
-- KEYS  1 due  2 minutes
-- ARGV  1 task prefix (`up:{sNN}:`)  2 state of the uploads that wait here (open, merging)  3 epoch minute  4 cursor
--       5 how many tasks to look at
-- Returns {next cursor, whether the bucket exists, whether the index names it, tasks, strays}: tasks are ids of uploads
-- whose hash says that they wait here, strays are all other ids. The cursor is '0' at the end.
--
-- One script because a task may leave between a look at the bucket and one at its hash; in steps, so that it is short.

local minute, bucket = ARGV[3], KEYS[1] .. ':' .. ARGV[3]
local step = redis.call('ZSCAN', bucket, ARGV[4], 'COUNT', ARGV[5])
local tasks, strays = {}, {}
for i = 1, #step[2], 2 do
  local list = upload_is_in(ARGV[1] .. step[2][i], minute, ARGV[2]) and tasks or strays
  list[#list + 1] = step[2][i]
end
local exists, indexed = redis.call('EXISTS', bucket), delay_indexed(KEYS[2], minute)
-- Of a bucket that is not there the index names no minute at all.
if exists == 0 then indexed = redis.call('ZSCORE', KEYS[2], minute) end
return {step[1], exists, indexed and 1 or 0, tasks, strays}
