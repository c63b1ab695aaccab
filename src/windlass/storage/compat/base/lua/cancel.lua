#!lua flags=allow-oom
-- Removes waiting jobs and, if the layout supports it, cancels running ones.
--
-- ARGV     [4] "1" to cancel running jobs too  [5…] ids
-- layout   cancel(id, running) → whether there was such a job
-- returns  a digit for each id: 1 cancelled, 0 no such job
-- errors   STALEOP

local replayed = begin_op()
if replayed then return replayed end
local digits = {}
for at = 5, #ARGV do
  digits[#digits + 1] = layout.cancel(ARGV[at], ARGV[4] == '1') and '1' or '0'
end
digits = table.concat(digits)
commit_op(digits)
return digits
