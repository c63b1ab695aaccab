#!lua
-- Adds jobs. Has no `allow-oom`: a full server refuses new jobs and still settles the old ones.
--
-- ARGV     [4…] for each job: id, data, change (see storage/formats.py). Ids are distinct within one call.
-- layout   add(id, data, change) → a added, u updated, k kept, b blocked, m missing (update of no job)
--          check(id), if a job has keys of its own: refuses keys of a wrong type before anything is written
-- returns  one letter for each job
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = begin_op()
if replayed then return replayed end
if layout.check then
  for at = 4, #ARGV, 3 do layout.check(ARGV[at]) end
end
local letters = {}
for at = 4, #ARGV, 3 do
  letters[#letters + 1] = layout.add(ARGV[at], ARGV[at + 1], ARGV[at + 2])
end
letters = table.concat(letters)
commit_op(letters)
announce()
return letters
