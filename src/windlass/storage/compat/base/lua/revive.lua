#!lua
-- Makes dead or broken jobs ready again. Has no `allow-oom`: they need memory like new jobs.
--
-- ARGV     [4…] ids
-- layout   revive(id) → whether there was such a job
-- returns  a digit for each id: 1 revived, 0 no such job
-- errors   STALEOP

local replayed = begin_op()
if replayed then return replayed end
local digits = {}
for at = 4, #ARGV do
  digits[#digits + 1] = layout.revive(ARGV[at]) and '1' or '0'
end
digits = table.concat(digits)
commit_op(digits)
announce()
return digits
