#!lua flags=no-writes
-- When a look at the queue may find something to do. What an idle worker asks from time to time, in case nobody told it:
-- so the answer for an empty queue takes one command.
--
-- KEYS     ready, inbox, outbox, scheduled, ticks, held, holders, state
-- ARGV     the time for run times and the time for leases, as the caller knows them: they may be late, never ahead
-- returns  0 now, else ms until the first run time, tick or end of a lease; -1 when there is nothing in sight

local CLOCK_AT = 19 -- where the lease clock is in CORE (see clock.lua)

local call = redis.call
if call('EXISTS', unpack(KEYS, 1, 6)) == 0 then return -1 end
if call('EXISTS', unpack(KEYS, 1, 3)) > 0 then return 0 end

-- ms until the first entry of a sorted set by time
local function comes_in(key, time)
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  return first and math.max(0, math.ceil(first - time)) or math.huge
end
local first = math.min(comes_in(KEYS[4], ARGV[1]), comes_in(KEYS[5], ARGV[1]))
-- A holder that holds nothing may be late for as long as it likes.
if call('EXISTS', KEYS[6]) == 1 then
  -- Somebody may have put the clock ahead since that caller heard it, by as much as it was behind.
  local core = call('HGET', KEYS[8], 'core') or ''
  local clock = #core >= CLOCK_AT + 7 and struct.unpack('>I8', core, CLOCK_AT) or 0
  first = math.min(first, comes_in(KEYS[7], math.max(ARGV[2], clock)))
end
return first < math.huge and first or -1
