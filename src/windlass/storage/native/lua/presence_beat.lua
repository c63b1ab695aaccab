#!lua flags=allow-oom
-- Registers a worker with its description, or removes it. Every call also drops entries that were not refreshed, and the keys
-- expire by themselves, so dead workers leave nothing behind.
--
-- KEYS     [1] seen  [2] about
-- ARGV     [1] name  [2] its description, "" to remove the worker  [3] ms after which an entry that is not refreshed is dropped
-- returns  1
-- errors   WRONGTYPE; nothing is written then.

local call = redis.call
local seen, about = KEYS[1], KEYS[2]
local name, description, ttl_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

call('ZCARD', seen)
call('HLEN', about)
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

for _, gone in ipairs(call('ZRANGE', seen, '-inf', '(' .. string.format('%.0f', now - ttl_ms), 'BYSCORE', 'LIMIT', 0, MAX_ITEMS)) do
  call('ZREM', seen, gone)
  call('HDEL', about, gone)
end
if description == '' then
  call('ZREM', seen, name)
  call('HDEL', about, name)
else
  call('ZADD', seen, now, name)
  call('HSET', about, name, description)
  call('PEXPIRE', seen, ttl_ms)
  call('PEXPIRE', about, ttl_ms)
end
return 1
