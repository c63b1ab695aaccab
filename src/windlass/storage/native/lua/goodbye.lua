#!lua flags=allow-oom
-- uses leases
-- A client leaves: its callers end (their last answers will not be asked for again), its waiters are taken off the
-- list, and its holders that hold nothing are forgotten. When the queue is empty and nobody else has a caller, its state
-- goes too, and not one key is left; at once, or after a while if it remembers what came from other queues' outboxes.
--
-- ARGV     four times a number n and then n names: waiters, holders, callers, and callers on which a call may still arrive: of
--          these the last answer is kept for a while, marked by a 0 in front
-- returns  1 when the last key went, else 0
-- errors   WRONGTYPE; nothing is written then.

measure('ZCARD', READY, SCHEDULED, HOLDERS, DEAD, BROKEN, IDLE, OUTBOX)
measure('HLEN', LEASES, DATA, BLOCKED, SCHEDULES)
measure('LLEN', INBOX)
read_state()

local OUTBOX_FORGOTTEN, CALLER_FORGOTTEN = 86400000, 600000 -- ms; as in operations.lua

local at = 1
local function names()
  local found = {}
  for i = 1, tonumber(ARGV[at]) do found[i] = ARGV[at + i] end
  at = at + #found + 1
  return found
end

local waiters, holders = names(), names()
if #holders > 0 then measure('ZCARD', HELD) end
for _, waiter in ipairs(waiters) do call('ZREM', IDLE, waiter) end
for _, holder in ipairs(holders) do
  if #held_by(holder, 1) == 0 then call('ZREM', HOLDERS, holder) end
end
for _, caller in ipairs(names()) do call('HDEL', STATE, 'caller:' .. caller) end
for _, caller in ipairs(names()) do
  local record = call('HGET', STATE, 'caller:' .. caller)
  if record then call('HSET', STATE, 'caller:' .. caller, '0' .. record) end
end

local used = state.paused or call('ZCARD', HOLDERS) > 0
for _, key in ipairs({ READY, SCHEDULED, LEASES, DATA, BLOCKED, DEAD, BROKEN, INBOX, OUTBOX, SCHEDULES }) do
  used = used or size[key] > 0
end
if used or call('HLEN', STATE) > 30 then return 0 end
local remembers = 0 -- ms
for _, field in ipairs(call('HKEYS', STATE)) do
  if string.sub(field, 1, 12) == 'caller:from:' then
    remembers = OUTBOX_FORGOTTEN -- the outbox of another queue: no client, but it may send what it sent before
  elseif string.sub(field, 1, 7) == 'caller:' then
    if string.sub(call('HGET', STATE, field), 1, 1) ~= '0' then return 0 end
    remembers = math.max(remembers, CALLER_FORGOTTEN)
  end
end
return remembers > 0 and call('PEXPIRE', STATE, remembers) or call('DEL', STATE)
