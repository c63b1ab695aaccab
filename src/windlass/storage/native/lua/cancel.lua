#!lua flags=allow-oom
-- uses operations meta leases publish_events marks
-- Removes waiting jobs and, on request, cancels running ones. A cancelled running job keeps its lease, so that no worker
-- starts the same id. It is removed however its attempt ends, and `extend` and `progress` answer 0 from now on.
--
-- ARGV     [4] "1" to cancel running jobs too  [5…] ids
-- returns  { the clock's reading, a digit for each id: 0 no such job, 1 a waiting job was removed, 2 the holder of a running job
--            was told, 3 both }
-- errors   FORMAT, STALEOP, WRONGTYPE; nothing is written then.

local repeated = begin_op()
if repeated then
  return type(repeated) == 'table' and repeated or { reading(), repeated }
end
measure('ZCARD', READY, SCHEDULED, WATCHED, ENDED)
measure('HLEN', LEASES, DATA, META, LAST_ERRORS, BLOCKED)

local flags, unblocked, removed = {}, {}, {}
for i = 5, #ARGV do
  local id = ARGV[i]
  local text = call('HGET', LEASES, id)
  local flag = 0
  if text then
    flag = call('HDEL', BLOCKED, id)
    if flag == 1 then unblocked[#unblocked + 1] = id end
    local lease = read_lease(text)
    if ARGV[4] == '1' and not lease.cancelled then
      call('HSET', LEASES, id, write_lease(1, lease.fence, lease.score, lease.holder))
      call('PUBLISH', CANCEL_CHANNEL .. lease.holder, string.match(STATE, '{(.-)}') .. ' ' .. id)
      flag = flag + 2
    end
  else
    local m = read_meta(call('HGET', META, id))
    flag = call('ZREM', READY, id)
    if m.seq > 0 then
      flag = math.max(flag, call('ZREM', SCHEDULED, scheduled_member(m.seq, id)))
    end
    if flag == 1 then
      call('HDEL', DATA, id)
      call('HDEL', META, id)
      call('HDEL', LAST_ERRORS, id)
      publish_event(id, 'cancelled')
      removed[#removed + 1] = id
    end
  end
  flags[#flags + 1] = string.format('%d', flag)
end
leave_marks(unblocked, BLOCKED_CANCELLED)
leave_marks(removed, CANCELLED)
flags = table.concat(flags)
commit_op(flags)
return { reading(), flags }
