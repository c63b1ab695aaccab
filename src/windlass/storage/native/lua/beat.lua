#!lua flags=allow-oom
-- uses operations
-- Heartbeat of a named holder: extends all its leases by one lease time. Only a known holder is refreshed: a holder that was
-- declared lost has lost its jobs and must register again.
--
-- ARGV     [4] holder  [5] lease time in ms  [6] "1" to register a holder that is not known
--          [7] "" or a META record: limits of the failure jobs, which this queue creates from now on
-- returns  { the clock's reading, "1" known before or "0" not, number of parked jobs }
-- errors   FORMAT, STALEOP, WRONGTYPE; nothing is written then.

local repeated = begin_op()
if repeated then
  return type(repeated) == 'table' and repeated or { reading(), repeated, 0 }
end
measure('ZCARD', HOLDERS, PARKED)

local ends = tonumber(call('ZSCORE', HOLDERS, ARGV[4]) or nil)
local known = ends and ends > 0 and '1' or '0' -- 0: a sweep is taking its jobs back
if known == '1' or (ARGV[6] == '1' and not ends) then
  call('ZADD', HOLDERS, 'GT', lease_end(tonumber(ARGV[5])), ARGV[4])
end
if ARGV[7] ~= '' and state.failure_handler ~= ARGV[7] then
  call('HSET', STATE, 'failure_handler', ARGV[7])
  state.failure_handler = ARGV[7]
end
commit_op(known)
return { reading(), known, size[PARKED] }
