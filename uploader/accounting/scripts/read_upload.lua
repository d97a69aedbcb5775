-- Reads an upload in Redis, and the era.
--
-- KEYS  1 up  2 era
-- ARGV  1 era token
-- Returns {era, state, received, chunks}. state: '' if Redis does not know the upload in this era.
--
-- One script so that the era and the figures belong together.

local era = current_era(KEYS[2], ARGV[1])
local facts = redis.call('HMGET', KEYS[1], 'era', 'state', 'figures')
local received, _, chunks = read_figures(facts[3])
if facts[1] ~= era or not received then return {era, '', 0, 0} end
return {era, facts[2], received, chunks}
