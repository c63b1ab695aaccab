-- Placing jobs that wait. None of these functions can fail once the script has read the sizes of the keys they write.

-- Run times are whole ms. This fraction marks a parked job: the queue set its run time because no worker knew the task.
local PARKED_FRACTION = 0.5

-- An attempt that was charged, snoozed, or made the job a suspect, ends its expiry: it may have done a part of the work.
local function end_expiry_if_started(m)
  if m.extras and (m.failures + m.stalls + snoozes_of(m) > 0 or marked(m, SUSPECT)) then remove_expiry(m) end
end

-- Writes the META record of a job, or deletes it if it is not `needed` and all its values are as implied.
local function save_or_delete_meta(id, m, needed)
  end_expiry_if_started(m)
  set_mark(m, EXPIRES, m.extras ~= nil and m.extras.expires ~= nil)
  if needed or not is_plain(m) then
    call('HSET', META, id, write_meta(m))
    size[META] = 1
  elseif size[META] ~= 0 then
    call('HDEL', META, id)
  end
end

-- Puts a job into `scheduled` if its run time is ahead, else into `ready`: after its equals, or with a `score` back in
-- its old place.
local function place(id, m, run_at, score)
  if run_at > due then
    m.seq = next_seq()
    call('ZADD', SCHEDULED, run_at, scheduled_member(m.seq, id))
    save_or_delete_meta(id, m, true)
    if run_at - due < SOON_MS then soon_count = soon_count + 1 end
    return
  end
  local seq = score and score % PRIORITY_STEP or next_seq()
  call('ZADD', READY, m.priority * PRIORITY_STEP + seq, id)
  m.seq = 0
  save_or_delete_meta(id, m, false)
  made_ready = made_ready + 1
end

-- Moves due jobs from `scheduled` to `ready`, oldest run time first, then lowest sequence.
local function promote(limit)
  if size[SCHEDULED] == 0 then return end
  local members = call('ZRANGE', SCHEDULED, '-inf', due, 'BYSCORE', 'LIMIT', 0, limit)
  if #members == 0 then return end
  local ids, adds = {}, {}
  for i, member in ipairs(members) do
    ids[i] = string.sub(member, 9)
  end
  local metas = call('HMGET', META, unpack(ids))
  for i, id in ipairs(ids) do
    local m = read_meta(metas[i])
    adds[2 * i - 1] = m.priority * PRIORITY_STEP + next_seq()
    adds[2 * i] = id
    m.seq = 0
    save_or_delete_meta(id, m, false)
  end
  call('ZREM', SCHEDULED, unpack(members))
  call('ZADD', READY, unpack(adds))
  made_ready = made_ready + #ids
  size[READY] = 1
end
