-- Placing jobs that wait. None of these moves can fail once the sizes of the keys they touch were read.

-- Run times are whole ms; one with this fraction was set because nobody knew the task, and is nobody's wish.
local PARKED_FRACTION = 0.5

local function keep_meta(id, m, needed)
  if needed or not is_plain(m) then
    call('HSET', META, id, write_meta(m))
    size[META] = 1
  elseif size[META] ~= 0 then
    call('HDEL', META, id)
  end
end

-- Puts a job where its run time says: `scheduled`, or `ready` behind its equals, or, with a `score`, back in its old place.
local function place(id, m, run_at, score)
  if run_at > due then
    m.seq = next_seq()
    call('ZADD', SCHEDULED, run_at, scheduled_member(m.seq, id))
    keep_meta(id, m, true)
    if run_at - due < SOON then soon = soon + 1 end
    return
  end
  local seq = score and score % PRIORITY_STEP or next_seq()
  call('ZADD', READY, m.priority * PRIORITY_STEP + seq, id)
  m.seq = 0
  keep_meta(id, m, false)
  came = came + 1
end

-- Promotes scheduled jobs that are due, oldest run time first, then oldest sequence.
local function promote(most)
  if size[SCHEDULED] == 0 then return end
  local members = call('ZRANGE', SCHEDULED, '-inf', due, 'BYSCORE', 'LIMIT', 0, most)
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
    keep_meta(id, m, false)
  end
  call('ZREM', SCHEDULED, unpack(members))
  call('ZADD', READY, unpack(adds))
  came = came + #ids
  size[READY] = 1
end
