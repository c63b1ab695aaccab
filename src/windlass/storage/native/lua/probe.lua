#!lua flags=no-writes
-- When a turn may find work. Idle workers call this from time to time, in case a wake-up was lost, so the answer for an empty
-- queue takes one command.
--
-- KEYS     ready, inbox, outbox, scheduled, ticks, held, holders, state
-- ARGV     [1] `due` and [2] `now` of the queue's clock as the caller knows them: they may be behind, never ahead
-- returns  0 if there is work now, else ms until the first run time, tick or end of a lease; -1 if there is none
-- errors   WRONGTYPE

local call = redis.call
if call('EXISTS', unpack(KEYS, 1, 6)) == 0 then return -1 end
if call('EXISTS', unpack(KEYS, 1, 3)) > 0 then return 0 end

-- ms until the first entry of a sorted set whose scores are times.
local function comes_in(key, time)
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  return first and math.max(0, math.ceil(first - time)) or math.huge
end
local first = math.min(comes_in(KEYS[4], ARGV[1]), comes_in(KEYS[5], ARGV[1]))
-- A holder that holds nothing may be late: there is nothing to take back.
if call('EXISTS', KEYS[6]) == 1 then
  -- The queue's clock may be ahead of the caller's reading: another caller's evidence may have moved it since.
  local core = call('HGET', KEYS[8], 'core') or ''
  local clock = #core >= CLOCK_AT + 7 and struct.unpack('>I8', core, CLOCK_AT) or 0
  first = math.min(first, comes_in(KEYS[7], math.max(ARGV[2], clock)))
end
return first < math.huge and first or -1
