#!lua flags=allow-oom
-- uses leases
-- A client ends. Deletes its callers (no program asks for their answers again), its waiters and its holders that hold nothing.
-- If the queue is empty and has no other callers, deletes the state too, so that no key is left. A state that remembers other
-- queues' outboxes or late callers expires instead.
--
-- ARGV     four lists, each a number n and then n names: waiters, holders, callers, and callers whose calls may still arrive:
--          the last answer of those is kept for a while, marked by a leading 0
-- returns  1 if the state was deleted or expires, else 0
-- errors   FORMAT, WRONGTYPE; nothing is written then.

measure('ZCARD', READY, SCHEDULED, HOLDERS, DEAD, BROKEN, IDLE, OUTBOX)
measure('HLEN', LEASES, DATA, BLOCKED, SCHEDULES)
measure('LLEN', INBOX)
read_state()


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
    remembers = SOURCE_TTL_MS -- the outbox of another queue is no client, but may send its jobs again
  elseif string.sub(field, 1, 7) == 'caller:' then
    if string.sub(call('HGET', STATE, field), 1, 1) ~= '0' then return 0 end
    remembers = math.max(remembers, CALLER_TTL_MS)
  end
end
return remembers > 0 and call('PEXPIRE', STATE, remembers) or call('DEL', STATE)
