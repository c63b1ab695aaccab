#!lua flags=no-writes
-- The workers that gave a sign of life of late. One that seems to have done so in the future did it before the server's
-- clock was put back: it is shown again when it is heard of again.
--
-- KEYS     [1] seen  [2] about
-- ARGV     [1] ms after which an entry that is not refreshed is gone
-- returns  { names, when each was last heard of (ms), what is told about each (or false), the server's time (ms) }
-- errors   WRONGTYPE

local call = redis.call
local MOST = 5000
local seen, about, ms = KEYS[1], KEYS[2], tonumber(ARGV[1])

local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local from, to = string.format('%.0f', now - ms), string.format('%.0f', now + ms)
local found = call('ZRANGE', seen, from, to, 'BYSCORE', 'LIMIT', 0, MOST, 'WITHSCORES')
local names, times = {}, {}
for i = 1, #found, 2 do
  names[#names + 1] = found[i]
  times[#times + 1] = found[i + 1]
end
return { names, times, #names > 0 and call('HMGET', about, unpack(names)) or {}, now }
