#!lua flags=allow-oom
-- A peer cancelled a task: what one worker of ours runs of it is cancelled, and the worker told as always.
--
-- ARGV     [4] worker  [5] the task  [6] its MD5
-- returns  1 when it runs one that was not cancelled before, else 0
-- errors   STALEOP

local replayed = open()
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
  if told == 1 then call('DEL', unique_task(ARGV[6])) end -- now, for its attempt may never end
end
close(whole(told))
return told
