-- Leases the task of an upload to the caller: its flush or merge is due again when the lease ends. A merge renews the lease
-- while it works. A closer takes a lease before its commit, so that the next worker finds the upload if the closer dies.
--
-- KEYS  1 up  2 chunks  3 era  4 due:flush  5 minutes:flush  6 due:merge  7 minutes:merge
-- ARGV  1 now_ms ('' for TIME)  2 upload id  3 lease_ms
-- Returns 1; 0 if the upload is not open or merging in Redis.
--
-- One script so that an upload that was closed meanwhile is not put back into a queue.

local up = KEYS[1]
local facts = redis.call('HMGET', up, 'state', 'timer')
local now = clock_ms(ARGV[1])
local due, _, _, since, lease_until = now + tonumber(ARGV[3]), read_timer(facts[2])
local own = since and string.format(' %d %d', since, lease_until) or IDLE
if facts[1] == 'merging' then
  delay_schedule(KEYS[6], KEYS[7], up, ARGV[2], due, now, own)
elseif facts[1] == 'open' then
  delay_schedule(KEYS[4], KEYS[5], up, ARGV[2], due, now, own)
else
  return 0
end
return 1
