#!lua flags=no-writes
-- Whether a look at the queue may find something to do. What an idle worker asks once a second, in case nobody told it:
-- so the answer for an empty queue takes one command.
--
-- KEYS     ready, inbox, outbox, scheduled, ticks, held, holders
-- ARGV     the time for run times and the time for leases, as the caller knows them: they may be late, never ahead
-- returns  1 or 0

local call = redis.call
if call('EXISTS', unpack(KEYS, 1, 6)) == 0 then return 0 end
if call('EXISTS', unpack(KEYS, 1, 3)) > 0 then return 1 end

local function has_come(key, time)
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  return first and tonumber(first) <= tonumber(time)
end
-- A holder that holds nothing may be late for as long as it likes.
if has_come(KEYS[4], ARGV[1]) or has_come(KEYS[5], ARGV[1]) or call('EXISTS', KEYS[6]) == 1 and has_come(KEYS[7], ARGV[2]) then
  return 1
end
return 0
