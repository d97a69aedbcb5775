-- An upload in Redis: the hash `up:{sNN}:<id>` with `era`, `state`, and fields of decimal text. All values that change with
-- every chunk share a field, because a field costs more than its digits.
--
--   figures  received, flushed, chunks, chunk_count, generation
--   tail     the number of the first missing chunk, and how many of its bytes are there; absent without such bytes
--   part     '1' for a part: after its last chunk it waits for its whole, and is not merged
--   timer    as in `_delay.lua`, then two times (ms): since when bytes are pending (0: no bytes came since the last claim),
--            and until when a worker has claimed the task (0: not claimed)
--
-- A file that Redis loaded at its start may have damaged bytes. So unreadable figures and timers are nil, and an unknown
-- state counts as no state.

local ENDED = {done = true, cancelled = true, expired = true, failed = true, consumed = true}
-- The end of the timer of a task without pending bytes and without a claim.
local IDLE = ' 0 0'

-- Returns received, flushed, chunks, chunk_count, generation; nil if the text is not five numbers.
local function read_figures(text)
  local received, flushed, chunks, chunk_count, generation = string.match(text or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  if received then return received + 0, flushed + 0, chunks + 0, chunk_count + 0, generation + 0 end
end

local function figures_text(received, flushed, chunks, chunk_count, generation)
  return string.format('%d %d %d %d %d', received, flushed, chunks, chunk_count, generation)
end

-- Returns the number of a chunk, and how many of its bytes are there; nil if the text is unreadable.
local function read_tail(text)
  local number, length = string.match(text or '', '^(%d+) (%d+)$')
  if number then return number + 0, length + 0 end
end

-- Returns where the task of an upload waits, its due time, since when bytes are pending, and until when the task is claimed.
-- Without a task the first two are nil; all are nil if the text is unreadable.
local function read_timer(text)
  if text == '' then return nil, nil, 0, 0 end
  local at, due_ms, since, lease_until = string.match(text or '', '^(%d+) (%d+) (%d+) (%d+)$')
  if at then return at + 0, due_ms + 0, since + 0, lease_until + 0 end
end

local function timer_text(at, due_ms, since, lease_until)
  return string.format('%d %d %d %d', at, due_ms, since, lease_until)
end

-- Pushes the flush back after bytes came; the flush is due at once if too many bytes are pending. Returns the timer.
local function push_back(due, minutes, id, at, since, lease_until, pending, now, quiet_ms, max_delay_ms, max_pending)
  if since == 0 then since = now end
  local due_ms = math.min(now + quiet_ms, since + max_delay_ms)
  if pending >= tonumber(max_pending) then due_ms = now end
  -- The worker that claimed the task may be dead: more bytes must not push the end of its lease back.
  if lease_until > 0 then due_ms = math.min(due_ms, lease_until) end
  at = delay_place(due, minutes, id, at, due_ms, now)
  return timer_text(at, due_ms, since, lease_until)
end

-- Returns the reply of a script about an upload as text, because a table costs three times as much.
local function answer(word, received, chunks, chunk_count, state)
  return string.format('%s %d %d %d %s', word, received, chunks, chunk_count, state)
end

-- Returns whether the upload has this state and its task waits in this bucket, by its hash.
local function upload_is_in(up, minute, state)
  local facts = redis.call('HMGET', up, 'timer', 'state')
  local at = read_timer(facts[1])
  return at and delay_minute(at) == minute and facts[2] == state
end
