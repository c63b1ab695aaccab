#!lua flags=allow-oom
-- uses operations meta leases changes watching wake waiting endings drift
-- One step of a deep clean: compares a bounded part of one key with the others and mends what does not fit; shared/drift.lua
-- says what that is. Each step is atomic and judges by what it sees then, so it is safe beside live workers.
--
--   idle, state   and what only gathers there: waiters and callers that were not heard of for long → dropped
--
-- ARGV     [4] the part's name, as above or in shared/drift.lua  [5] cursor: "0" to begin
-- returns  { the clock's reading, next cursor or "0", jobs looked at, things amiss, things mended, kind and id of some of them }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = open()
if replayed then
  if type(replayed) == 'table' then return replayed end
  return { reading(), unpack(cmsgpack.unpack(replayed)) }
end
measure_all()
mends = true

SCANNED.idle, SCANNED.state = IDLE, STATE

function compare.idle(waiter)
  if tonumber(call('ZSCORE', IDLE, waiter)) < now and find('gone', waiter) then call('ZREM', IDLE, waiter) end
end

function compare.state(field)
  if string.sub(field, 1, 7) ~= 'caller:' or field == caller_field then return end
  local heard = string.match(call('HGET', STATE, field), '^%d+ (%d+)')
  if (not heard or is_forgotten(field, heard)) and find('gone', field) then call('HDEL', STATE, field) end
end

local answer = compare_some(ARGV[4], ARGV[5])
if mended > 0 then close(cmsgpack.pack(answer)) end -- else nothing was changed, and a repeat is just another look
wake(came)
return { reading(), unpack(answer) }
