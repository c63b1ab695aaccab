#!lua flags=no-writes
-- Lists the workers that sent a heartbeat recently. A heartbeat in the future was sent before the server's clock was set
-- back: that worker appears again with its next heartbeat.
--
-- KEYS     [1] seen  [2] about
-- ARGV     [1] ms after which an entry that is not refreshed is dropped
-- returns  { names, time of each last heartbeat (ms), description of each (or false), the server's time (ms) }
-- errors   WRONGTYPE

local call = redis.call
local MAX_WORKERS = 5000 -- workers in one reply: keeps it within a few milliseconds
local seen, about, ms = KEYS[1], KEYS[2], tonumber(ARGV[1])

local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local from, to = string.format('%.0f', now - ms), string.format('%.0f', now + ms)
local found = call('ZRANGE', seen, from, to, 'BYSCORE', 'LIMIT', 0, MAX_WORKERS, 'WITHSCORES')
local names, times = {}, {}
for i = 1, #found, 2 do
  names[#names + 1] = found[i]
  times[#times + 1] = found[i + 1]
end
return { names, times, #names > 0 and call('HMGET', about, unpack(names)) or {}, now }
