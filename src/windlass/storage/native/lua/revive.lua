#!lua
-- uses operations meta dead_record marks wake place_job
-- Makes dead or broken jobs ready again, with all counts at zero. Has no `allow-oom`: they need memory like new jobs.
--
-- ARGV     [4…] ids
-- returns  { the clock's reading, a digit for each id: 1 revived, 0 no dead or broken job with this id, or its id is in use }
-- errors   FORMAT, STALEOP, WRONGTYPE; nothing is written then.

local repeated = begin_op()
if repeated then
  return type(repeated) == 'table' and repeated or { reading(), repeated }
end
measure('ZCARD', READY, SCHEDULED, DEAD, BROKEN, IDLE, ENDED)
measure('HLEN', DATA, META, DEAD_RECORDS)

local flags = {}
for i = 4, #ARGV do
  local id = ARGV[i]
  local dead_record = call('HGET', DEAD_RECORDS, id)
  local m, data_at
  if dead_record and call('HEXISTS', DATA, id) == 0 then m, data_at = read_dead_record(dead_record) end
  flags[#flags + 1] = m and '1' or '0'
  if m then
    m.failures, m.stalls = 0, 0
    if m.extras then m.extras.snoozes = nil end
    set_mark(m, SUSPECT, false)
    call('HSET', DATA, id, string.sub(dead_record, data_at))
    call('HDEL', DEAD_RECORDS, id)
    call('ZREM', DEAD, id)
    call('ZREM', BROKEN, id)
    drop_mark(id)
    place(id, m, 0)
  end
end
flags = table.concat(flags)
commit_op(flags)
wake(made_ready)
return { reading(), flags }
