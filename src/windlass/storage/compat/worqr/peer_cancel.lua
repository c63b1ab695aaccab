#!lua flags=allow-oom
-- A peer cancelled a task: cancels the runs of that task on one Windlass worker and tells the worker.
--
-- ARGV     [4] worker  [5] the task  [6] its MD5
-- returns  1 if the worker has such a run that was not cancelled before, else 0
-- errors   STALEOP

local replayed = begin_op()
if replayed then return type(replayed) == 'table' and replayed or tonumber(replayed) end
local told = 0
if call('EXISTS', echo(ARGV[5])) == 0 then
  local id = id_of(ARGV[5])
  for _, run in ipairs(works_on(id)) do
    if run.holder == ARGV[4] and not run.cancelled then
      cancel_run(run, id)
      told = 1
    end
  end
  if told == 1 then call('DEL', unique_task(ARGV[6])) end -- now, because the attempt may never end
end
commit_op(whole(told))
return told
