#!lua flags=allow-oom
-- One batch of an audit with repair: compares a bounded part of the queue with the other keys and repairs the problems it finds.
--
-- ARGV     [4] the part: of problems.lua here or of the layout's problems.lua  [5] cursor, "0" to begin
-- returns  { next cursor or "0", jobs checked, problems, repaired, kind and id of some problems }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = begin_op()
if replayed then return type(replayed) == 'table' and replayed or cmsgpack.unpack(replayed) end
repairing = true
local answer = audit_batch(ARGV[4], ARGV[5])
if repaired > 0 then commit_op(cmsgpack.pack(answer)) end -- else nothing changed, and a retry may check again
announce()
return answer
