#!lua
-- uses operations meta wake waiting
-- Makes dead or broken jobs ready again, with all counts at zero. Has no `allow-oom`: they need memory like new jobs.
--
-- ARGV     [4…] ids
-- returns  { the clock's reading, a digit for each id: 1 revived, 0 no such dead job, or its id is in use }
-- errors   FORMAT, STALEOP, WRONGTYPE; nothing is written then.

local replayed = begin_op()
if replayed then
  return type(replayed) == 'table' and replayed or { reading(), replayed }
end
measure('ZCARD', READY, SCHEDULED, DEAD, BROKEN, IDLE)
measure('HLEN', DATA, META, DEAD_RECORDS)

local HEAD = 9 -- bytes of reason and time
local flags = {}
for i = 4, #ARGV do
  local id = ARGV[i]
  local dead_record = call('HGET', DEAD_RECORDS, id)
  local ours = dead_record and #dead_record >= HEAD + META_SIZE + 4 and call('HEXISTS', DATA, id) == 0
  flags[#flags + 1] = ours and '1' or '0'
  if ours then
    local m = read_meta(string.sub(dead_record, HEAD + 1, HEAD + META_SIZE))
    local length = struct.unpack('>I4', string.sub(dead_record, HEAD + META_SIZE + 1, HEAD + META_SIZE + 4))
    m.failures, m.stalls = 0, 0
    set_mark(m, SUSPECT, false)
    call('HSET', DATA, id, string.sub(dead_record, HEAD + META_SIZE + 5 + length))
    call('HDEL', DEAD_RECORDS, id)
    call('ZREM', DEAD, id)
    call('ZREM', BROKEN, id)
    place(id, m, 0)
  end
end
flags = table.concat(flags)
commit_op(flags)
wake(made_ready)
return { reading(), flags }
