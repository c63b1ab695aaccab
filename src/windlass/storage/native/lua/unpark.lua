#!lua flags=allow-oom
-- uses operations meta wake place_job parked
-- Makes parked jobs ready at once, because a worker that knows their tasks is here.
--
-- ARGV     [4…] names of tasks
-- returns  { the clock's reading, jobs that became ready }
-- errors   FORMAT, STALEOP, WRONGTYPE; nothing is written then.

local repeated = begin_op()
if repeated then
  return type(repeated) == 'table' and repeated or { reading(), tonumber(repeated) }
end
measure('ZCARD', READY, SCHEDULED, PARKED, IDLE)
measure('HLEN', META, LAST_ERRORS)

local budget = MAX_ITEMS
for i = 4, #ARGV do
  budget = budget - take_parked(ARGV[i], budget, function(id, m) place(id, m, 0) end)
end
commit_op(string.format('%d', made_ready))
wake(made_ready)
return { reading(), made_ready }
