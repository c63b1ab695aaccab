#!lua flags=no-writes
-- Whether a look at the queue may find something to do. What an idle worker asks once a second, in case nobody told it.
--
-- KEYS     ready, inbox, outbox, scheduled, ticks, holders
-- ARGV     the time for run times and the time for leases, as the caller knows them: they may be late, never ahead
-- returns  1 or 0

local call = redis.call
if call('EXISTS', KEYS[1], KEYS[2], KEYS[3]) > 0 then return 1 end
for i = 4, 6 do
  local first = call('ZRANGE', KEYS[i], 0, 0, 'WITHSCORES')[2]
  if first and tonumber(first) <= tonumber(ARGV[i < 6 and 1 or 2]) then return 1 end
end
return 0
