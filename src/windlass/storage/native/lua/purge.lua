#!lua flags=allow-oom
-- uses operations meta wake place_job
-- Deletes the jobs of one state, a bounded number a call, or the whole queue at once, including running jobs. Keeps schedules.
--
-- ARGV     [4] ready, scheduled, blocked, dead, broken, or all
-- returns  { the clock's reading, deleted jobs, remaining jobs of that state }
-- errors   FORMAT, STALEOP, WRONGTYPE; nothing is written then.

local repeated = begin_op()
if repeated then
  if type(repeated) == 'table' then return repeated end
  local deleted, left = string.match(repeated, '^(%d+) (%d+)$')
  return { reading(), tonumber(deleted), tonumber(left) }
end
measure('ZCARD', READY, SCHEDULED, HELD, HOLDERS, DEAD, BROKEN, IDLE, PARKED, OUTBOX, WATCHED, TICKS, ENDED)
measure('HLEN', LEASES, DATA, META, BLOCKED, PROGRESS, LAST_ERRORS, DEAD_RECORDS, SCHEDULES)
measure('LLEN', INBOX)

local what = ARGV[4]
if what == 'all' then
  local deleted = size[DATA] + size[BLOCKED] + size[INBOX] + size[DEAD] + size[BROKEN] + size[OUTBOX]
  local kept = {} -- the last sequences of other queues' outboxes: their jobs must not arrive twice
  for _, field in ipairs(call('HKEYS', STATE)) do
    if string.sub(field, 1, 12) == 'caller:from:' or field == 'purged' then kept[field] = call('HGET', STATE, field) end
  end
  call('UNLINK', STATE, READY, SCHEDULED, LEASES, HELD, HOLDERS, DATA, META, BLOCKED, PROGRESS, LAST_ERRORS, DEAD, BROKEN, DEAD_RECORDS,
    INBOX, IDLE, PARKED, OUTBOX, WATCHED, ENDED)
  -- The new state keeps only the answer to this call, for a retry, and the step number. Clock 0: the queue counts as new.
  state.step, state.seq, state.fence, state.paused, state.failure_handler = state.step + 1, 0, 0, false, false
  if state.epoch == 0 then state.epoch = wall_us end
  call('HSET', STATE, 'format', VERSION, 'core', write_core(0), caller_field, write_record(string.format('%.0f', state.step), deleted .. ' 0'))
  if deleted + size[ENDED] > 0 then kept.purged = string.format('%.0f', state.step) end
  for field, record in pairs(kept) do call('HSET', STATE, field, record) end
  return { reading(), deleted, 0 }
end

local deleted, left = 0, 0

-- Deletes waiting jobs and their index entries.
local function delete(key, members, ids)
  if #members == 0 then return end
  call('ZREM', key, unpack(members))
  call('HDEL', DATA, unpack(ids))
  call('HDEL', META, unpack(ids))
  call('HDEL', LAST_ERRORS, unpack(ids))
  deleted = #members
end

if what == 'ready' then
  -- Due jobs count as ready.
  local total = size[READY] + call('ZCOUNT', SCHEDULED, '-inf', due)
  promote(MAX_ITEMS)
  local ids = call('ZRANGE', READY, 0, MAX_ITEMS - 1)
  delete(READY, ids, ids)
  left = total - deleted
elseif what == 'scheduled' then
  local ahead = '(' .. string.format('%.0f', due)
  local total = call('ZCOUNT', SCHEDULED, ahead, '+inf')
  local members, ids = call('ZRANGE', SCHEDULED, ahead, '+inf', 'BYSCORE', 'LIMIT', 0, MAX_ITEMS), {}
  for i, member in ipairs(members) do ids[i] = string.sub(member, 9) end
  delete(SCHEDULED, members, ids)
  left = total - deleted
elseif what == 'dead' or what == 'broken' then
  local key = what == 'dead' and DEAD or BROKEN
  local ids = call('ZRANGE', key, 0, MAX_ITEMS - 1)
  if #ids > 0 then
    call('ZREM', key, unpack(ids))
    call('HDEL', DEAD_RECORDS, unpack(ids))
    deleted = #ids
  end
  if what == 'dead' then call('HDEL', STATE, 'dropped') end -- a purge resets the count
  left = size[key] - deleted
else
  deleted = size[BLOCKED]
  call('UNLINK', BLOCKED)
end
-- Jobs that might have run leave no mark each, because a purge may be large: handles compare this step with their own.
if deleted > 0 and what ~= 'dead' and what ~= 'broken' then
  call('HSET', STATE, 'purged', string.format('%.0f', state.step + 1))
end
commit_op(string.format('%d %d', deleted, left))
return { reading(), deleted, left }
