#!lua flags=allow-oom
-- One step of a deep clean: compares a bounded part of the queue with the others, and mends what does not fit.
--
-- ARGV     [4] the part: of drift.lua here or of the layout's own  [5] cursor, "0" at first
-- returns  { next cursor or "0", jobs looked at, things amiss, things mended, kind and id of some of them }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = open()
if replayed then return type(replayed) == 'table' and replayed or cmsgpack.unpack(replayed) end
mends = true
local answer = compare_some(ARGV[4], ARGV[5])
if mended > 0 then close(cmsgpack.pack(answer)) end -- else nothing was changed, and a repeat is just another look
announce()
return answer
