#!lua flags=allow-oom
-- Records the progress of a leased job.
--
-- ARGV     [4] fence  [5] 0 to 1
-- layout   progress(run, value)
-- returns  1 recorded, 0 the lease was lost
-- errors   STALEOP

local replayed = begin_op()
if replayed then return type(replayed) == 'table' and replayed or tonumber(replayed) end
local run = run_of(ARGV[4])
if run then layout.progress(run, ARGV[5]) end
commit_op(run and '1' or '0')
return run and 1 or 0
