#!lua flags=allow-oom
-- uses operations meta wake place_job
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
  local members = budget > 0
      and call('ZRANGE', PARKED, '[' .. ARGV[i] .. '\0', '(' .. ARGV[i] .. '\1', 'BYLEX', 'LIMIT', 0, budget) or {}
  for _, member in ipairs(members) do
    local id = string.sub(member, #ARGV[i] + 2)
    local m = read_meta(call('HGET', META, id))
    local entry = m.seq > 0 and scheduled_member(m.seq, id)
    local run_at = tonumber(entry and call('ZSCORE', SCHEDULED, entry) or nil)
    -- A parked job may have been cancelled or rescheduled meanwhile: then there is nothing to do.
    if run_at and run_at % 1 == PARKED_FRACTION then
      call('ZREM', SCHEDULED, entry)
      call('HDEL', LAST_ERRORS, id)
      place(id, m, 0)
    end
    call('ZREM', PARKED, member)
  end
  budget = budget - #members
end
commit_op(string.format('%d', made_ready))
wake(made_ready)
return { reading(), made_ready }
