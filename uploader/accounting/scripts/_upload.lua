-- What Redis keeps of an upload: the hash `up:{sNN}:<id>` with `era`, `state`, and fields of decimal text for all that
-- changes with every chunk, because a field costs more than its digits do.
--
--   figures  received, flushed, chunks, chunk_count, generation
--   tail     the number of the first chunk that is not there, and how many of its bytes are; absent if none are
--   part     '1' of an upload that is a part: with its last chunk it waits for its whole, and is not merged
--   timer    as `_delay.lua` has it, with two times (ms) beside it: since when bytes are pending (0: nothing came since the
--            last claim), and until when a claimant has its task (0: nobody has)
--
-- A file that Redis read at its start may have held another byte than was written there: figures that are none are nil, so is
-- a timer, and a state that is no word is none.

local ENDED = {done = true, cancelled = true, expired = true, failed = true, consumed = true}
-- What stands beside the timer of a task of which nothing is pending and that nobody has claimed.
local IDLE = ' 0 0'

-- Received, flushed, chunks, chunk_count, generation; nil if these are not five numbers.
local function read_figures(text)
  local received, flushed, chunks, chunk_count, generation = string.match(text or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  if received then return received + 0, flushed + 0, chunks + 0, chunk_count + 0, generation + 0 end
end

local function figures_text(received, flushed, chunks, chunk_count, generation)
  return string.format('%d %d %d %d %d', received, flushed, chunks, chunk_count, generation)
end

-- The number of a chunk, and how many of its bytes are there; nil if this is no tail.
local function read_tail(text)
  local number, length = string.match(text or '', '^(%d+) (%d+)$')
  if number then return number + 0, length + 0 end
end

-- Where the task of an upload waits, when it is due, since when bytes are pending, until when it is claimed. Without a task
-- the first two are nil; all are nil if this is no timer.
local function read_timer(text)
  if text == '' then return nil, nil, 0, 0 end
  local at, due_ms, since, lease_until = string.match(text or '', '^(%d+) (%d+) (%d+) (%d+)$')
  if at then return at + 0, due_ms + 0, since + 0, lease_until + 0 end
end

local function timer_text(at, due_ms, since, lease_until)
  return string.format('%d %d %d %d', at, due_ms, since, lease_until)
end

-- Bytes came: their flush is pushed back, or due at once if too much is pending. Returns the timer.
local function push_back(due, minutes, id, at, since, lease_until, pending, now, quiet_ms, max_delay_ms, max_pending)
  if since == 0 then since = now end
  local due_ms = math.min(now + quiet_ms, since + max_delay_ms)
  if pending >= tonumber(max_pending) then due_ms = now end
  -- The worker that claimed the task may be dead: further bytes must not push the end of its lease back for ever.
  if lease_until > 0 then due_ms = math.min(due_ms, lease_until) end
  at = delay_place(due, minutes, id, at, due_ms, now)
  return timer_text(at, due_ms, since, lease_until)
end

-- What a script says of an upload: one text, because a table costs three times as much.
local function answer(word, received, chunks, chunk_count, state)
  return string.format('%s %d %d %d %s', word, received, chunks, chunk_count, state)
end

-- Whether the hash of an upload in this state says that its task waits in this bucket.
local function upload_is_in(up, minute, state)
  local facts = redis.call('HMGET', up, 'timer', 'state')
  local at = read_timer(facts[1])
  return at and delay_minute(at) == minute and facts[2] == state
end
