#!lua flags=allow-oom
-- uses operations meta leases changes publish_events wake place_job finish_job problems marks
-- One batch of an audit with repair: compares a bounded part of one key with the other keys and repairs the problems that
-- shared/problems.lua lists. Each step is atomic, so it is safe beside live workers.
--
--   idle, state, ended   expired waiters, callers and marks → dropped
--
-- ARGV     [4] the part's name, as above or in shared/problems.lua  [5] cursor: "0" to begin
-- returns  { the clock's reading, next cursor or "0", jobs checked, problems, repaired, kind and id of some problems }
-- errors   FORMAT, STALEOP, WRONGTYPE; nothing is written then.

local repeated = begin_op()
if repeated then
  if type(repeated) == 'table' then return repeated end
  return { reading(), unpack(cmsgpack.unpack(repeated)) }
end
measure_all()
repairing = true

SCANNED.idle, SCANNED.state, SCANNED.ended = IDLE, STATE, ENDED

function compare.idle(waiter)
  if tonumber(call('ZSCORE', IDLE, waiter)) < now and report('expired', waiter) then call('ZREM', IDLE, waiter) end
end

function compare.state(field)
  if string.sub(field, 1, 7) ~= 'caller:' or field == caller_field then return end
  local heard = string.match(call('HGET', STATE, field), '^%d+ (%d+)')
  if (not heard or caller_is_expired(field, heard)) and report('expired', field) then call('HDEL', STATE, field) end
end

function compare.ended(id)
  if tonumber(call('ZSCORE', ENDED, id)) < wall * MARK_CODES and report('expired', id) then drop_mark(id) end
end

local answer = audit_batch(ARGV[4], ARGV[5])
if repaired > 0 then commit_op(cmsgpack.pack(answer)) end -- else nothing changed, and a repeated call may check again
wake(made_ready)
return { reading(), unpack(answer) }
