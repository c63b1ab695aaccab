#!lua flags=allow-oom
-- uses operations meta wake waiting
-- A worker that knows these tasks is here: gives out at once what others put aside because they did not know them.
--
-- ARGV     [4…] names of tasks
-- returns  { the clock's reading, jobs given out }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = open()
if replayed then
  return type(replayed) == 'table' and replayed or { reading(), tonumber(replayed) }
end
measure('ZCARD', READY, SCHEDULED, PARKED, IDLE)
measure('HLEN', META, LAST_ERRORS)

local budget = MOST
for i = 4, #ARGV do
  local members = budget > 0
      and call('ZRANGE', PARKED, '[' .. ARGV[i] .. '\0', '(' .. ARGV[i] .. '\1', 'BYLEX', 'LIMIT', 0, budget) or {}
  for _, member in ipairs(members) do
    local id = string.sub(member, #ARGV[i] + 2)
    local m = read_meta(call('HGET', META, id))
    local entry = m.seq > 0 and scheduled_member(m.seq, id)
    local run_at = tonumber(entry and call('ZSCORE', SCHEDULED, entry) or nil)
    -- What was put aside may have been cancelled meanwhile, or got a run time of its own: then there is nothing to give out.
    if run_at and run_at % 1 == PARKED_FRACTION then
      call('ZREM', SCHEDULED, entry)
      call('HDEL', LAST_ERRORS, id)
      place(id, m, 0)
    end
    call('ZREM', PARKED, member)
  end
  budget = budget - #members
end
close(string.format('%d', came))
wake(came)
return { reading(), came }
