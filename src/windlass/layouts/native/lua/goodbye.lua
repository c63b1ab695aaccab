#!lua flags=allow-oom
-- Ends lanes: their last answers will not be asked for again. When the queue is empty and nobody else has a
-- lane, its state goes too, and not one key is left.
--
-- ARGV     [1] waiter or ""  [2…] lanes
-- returns  1 when the last key went, else 0
-- errors   WRONGTYPE; nothing is written then.

measure(READY, SCHEDULED, LEASES, HOLDERS, DATA, BLOCKED, DEAD, INBOX, IDLE)
read_state()
for i = 2, #ARGV do
  call('HDEL', STATE, 'lane:' .. ARGV[i])
end
if ARGV[1] ~= '' then call('ZREM', IDLE, ARGV[1]) end
local used = state.paused
for _, key in ipairs({ READY, SCHEDULED, LEASES, HOLDERS, DATA, BLOCKED, DEAD, INBOX }) do
  used = used or size[key] > 0
end
if used or call('HLEN', STATE) > 12 then return 0 end
for _, field in ipairs(call('HKEYS', STATE)) do
  if string.sub(field, 1, 5) == 'lane:' then return 0 end
end
return call('DEL', STATE)
