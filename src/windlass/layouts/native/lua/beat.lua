#!lua flags=allow-oom
-- uses operations
-- A named holder's sign of life: all that it holds is safe for another lease time. It is refreshed only if it
-- is still known; one that was called lost has lost all its jobs and must begin again.
--
-- ARGV     [4] holder  [5] lease time in ms  [6] "1" to be registered when not known
-- returns  { the clock's reading, "1" known before, "0" not }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = open()
if replayed then
  return type(replayed) == 'table' and replayed or { reading, replayed }
end
measure('ZCARD', HOLDERS)

local ends = tonumber(call('ZSCORE', HOLDERS, ARGV[4]) or nil)
local known = ends and ends > 0 and '1' or '0' -- 0: it is being taken apart
if known == '1' or (ARGV[6] == '1' and not ends) then
  call('ZADD', HOLDERS, 'GT', now + tonumber(ARGV[5]), ARGV[4])
end
close(known)
return { reading, known }
