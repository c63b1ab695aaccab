#!lua flags=allow-oom
-- A worker's sign of life in the fleet: what it is and does just now. Or its goodbye. Whoever writes takes away what was
-- not refreshed for too long, and the keys expire by themselves: a fleet that died leaves nothing behind.
--
-- KEYS     [1] seen  [2] about
-- ARGV     [1] name  [2] what to tell about it, "" to forget it  [3] ms after which an entry that is not refreshed is gone
-- returns  1
-- errors   WRONGTYPE; nothing is written then.

local call = redis.call
local MOST = 1000 -- entries that one call may take away
local seen, about = KEYS[1], KEYS[2]
local name, told, ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

call('ZCARD', seen)
call('HLEN', about)
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

for _, gone in ipairs(call('ZRANGE', seen, '-inf', '(' .. string.format('%.0f', now - ms), 'BYSCORE', 'LIMIT', 0, MOST)) do
  call('ZREM', seen, gone)
  call('HDEL', about, gone)
end
if told == '' then
  call('ZREM', seen, name)
  call('HDEL', about, name)
else
  call('ZADD', seen, now, name)
  call('HSET', about, name, told)
  call('PEXPIRE', seen, ms)
  call('PEXPIRE', about, ms)
end
return 1
