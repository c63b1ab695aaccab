#!lua flags=allow-oom
-- uses operations
-- A named holder's sign of life: all that it holds is safe for another lease time. It is refreshed only if it
-- is still known; one that was called lost has lost all its jobs and must begin again.
--
-- ARGV     [4] holder  [5] lease time in ms  [6] "1" to be registered when not known
--          [7] "" or a META record: failures on this queue are to become jobs for a failure handler, with these limits
-- returns  { the clock's reading, "1" known before, "0" not, jobs whose task some worker did not know }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = open()
if replayed then
  return type(replayed) == 'table' and replayed or { reading(), replayed, 0 }
end
measure('ZCARD', HOLDERS, PARKED)

local ends = tonumber(call('ZSCORE', HOLDERS, ARGV[4]) or nil)
local known = ends and ends > 0 and '1' or '0' -- 0: it is being taken apart
if known == '1' or (ARGV[6] == '1' and not ends) then
  call('ZADD', HOLDERS, 'GT', lease_end(tonumber(ARGV[5])), ARGV[4])
end
if ARGV[7] ~= '' and state.failure_handler ~= ARGV[7] then
  call('HSET', STATE, 'failure_handler', ARGV[7])
  state.failure_handler = ARGV[7]
end
close(known)
return { reading(), known, size[PARKED] }
