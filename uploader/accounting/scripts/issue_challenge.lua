-- Counts a probe of a user. Keeps a challenge if the content exists and the user's budgets allow it.
--
-- KEYS  1 challenge  2 probes (their number in this window)  3 unproven (ZSet of challenges without a good answer, scored by
--       the time when they no longer count)
-- ARGV  1 now_ms ('' for TIME)  2 challenge id  3 the challenge  4 '1' if there is content to offer, or '0'
--       5 ttl_ms  6 window_ms  7 max_probes  8 max_unproven
-- Returns 1 if the challenge was kept, else 0.
--
-- One script so that a probe counts with or without content to offer, and no race exceeds a budget.

local now = clock_ms(ARGV[1])
local probes = redis.call('INCR', KEYS[2])
if probes == 1 then redis.call('PEXPIRE', KEYS[2], ARGV[6]) end
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
local unproven = redis.call('ZCARD', KEYS[3])
if ARGV[4] == '0' or probes > tonumber(ARGV[7]) or unproven >= tonumber(ARGV[8]) then return 0 end
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[5])
redis.call('ZADD', KEYS[3], now + ARGV[6], ARGV[2])
redis.call('PEXPIRE', KEYS[3], ARGV[6])
return 1
