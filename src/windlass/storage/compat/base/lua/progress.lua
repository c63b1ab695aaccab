#!lua flags=allow-oom
-- Records how far a job has come.
--
-- ARGV     [4] fence  [5] 0 to 1
-- layout   progress(run, value)
-- returns  1, or 0 when it is not ours any more
-- errors   STALEOP

local replayed = open()
if replayed then return type(replayed) == 'table' and replayed or tonumber(replayed) end
local run = run_of(ARGV[4])
if run then layout.progress(run, ARGV[5]) end
close(run and '1' or '0')
return run and 1 or 0
