#!lua flags=allow-oom
-- uses operations meta leases changes wake waiting endings
-- One turn of a worker's wheel in one step: settle what is done, take in what came from outside, promote
-- what is due, take back what was abandoned, lease the next jobs. Any part may be empty.
--
-- ARGV     [4] holder: a worker's name, or "" for a raw lease (a holder of its own is made for it)
--          [5] lease time in ms  [6] how many jobs are wanted  [7] bound of the dead set
--          [8] waiter: "" or the name to wake when jobs come; registered while idle, taken off when jobs were leased
--          [9] n completed jobs, then n ids, then n fences (8 bytes each, big-endian)
--          […] m other outcomes, then for each: id, fence, verb (r retry, l release, f fail), kind of time and ms
--              (retry; see CHANGE), message
-- returns  { the clock's reading, a digit for each outcome: 1 it was still ours, 0 it was not,
--            fence before the first lease, ids, data, META records, ready scores,
--            ms until something happens by itself or -1, jobs taken back from lost holders }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local MOST_BYTES = 8 * 1024 * 1024 -- of payloads in one reply
local FIRST_PIECE = 16

local holder = ARGV[4] ~= '' and ARGV[4] or '.' .. ARGV[1] .. '.' .. ARGV[2]
local lease_ms, wanted, most_dead, waiter = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local completed = tonumber(ARGV[9])
local others_at = 10 + 2 * completed
local others = tonumber(ARGV[others_at])

local function hand_out(verdicts, base, ids, data, scores, wait, taken_back)
  local metas = #ids > 0 and size[META] > 0 and call('HMGET', META, unpack(ids)) or {}
  return { reading, verdicts, base, ids, data, metas, scores, wait, taken_back }
end

local replayed = open()
measure('ZCARD', READY, HELD, HOLDERS)
measure('HLEN', LEASES, DATA)
if call('EXISTS', SCHEDULED, DEAD, IDLE, META, BLOCKED, PROGRESS, NOTES, GRAVES, INBOX) > 0 then
  measure('ZCARD', SCHEDULED, DEAD, IDLE)
  measure('HLEN', META, BLOCKED, PROGRESS, NOTES, GRAVES)
  measure('LLEN', INBOX)
end
if replayed then
  if type(replayed) == 'table' then return replayed end
  -- The answer names the fences that were given out; what is still held of them is the reply.
  local verdicts, base, count, taken_back = string.match(replayed, '^(%d*) (%d+) (%d+) (%d+)$')
  base, count = tonumber(base), tonumber(count)
  local ids, scores, data = {}, {}, {}
  if count > 0 then
    for _, member in ipairs(held_by(holder, 8 * MOST)) do
      local id = string.sub(member, #holder + 2)
      local lease = read_lease(call('HGET', LEASES, id))
      if lease.fence > base and lease.fence <= base + count then
        ids[lease.fence - base] = id
        scores[lease.fence - base] = string.format('%.0f', lease.score)
      end
    end
    -- The n-th id has the n-th fence: one that is not held any more leaves an empty place (no id is empty, so no data).
    for i = 1, count do
      ids[i], scores[i] = ids[i] or '', scores[i] or '0'
    end
    data = call('HMGET', DATA, unpack(ids))
  end
  return hand_out(verdicts, base, ids, data, scores, -1, tonumber(taken_back))
end

local changed = false

---------------------------------------------------------------------------------------------------
-- Settle

local verdicts = {}
local touched = {} -- raw holders that may be done

-- The lease on this job if it is the one with this fence.
local function owned(text, fence)
  local lease = text and read_lease(text)
  return lease and lease.fence == tonumber(fence) and lease
end

if completed > 0 then
  local ids = {}
  for i = 1, completed do ids[i] = ARGV[9 + i] end
  local texts = call('HMGET', LEASES, unpack(ids))
  local done, members, seen, count = {}, {}, {}, 0
  for i = 1, completed do
    local id, text = ids[i], texts[i]
    -- The packed fence is compared as it lies in the record: this loop is the hottest of all.
    if text and string.sub(text, 2, 9) == ARGV[9 + completed + i] and not seen[id] then
      local owner = string.sub(text, LEASE_HEAD + 1, LEASE_HEAD + string.byte(text, LEASE_HEAD))
      count = count + 1
      verdicts[i], seen[id], touched[owner] = '1', true, true
      done[count], members[count] = id, owner .. '\0' .. id
    else
      verdicts[i] = '0'
    end
  end
  if #done > 0 then
    changed = true
    call('HDEL', LEASES, unpack(done))
    call('ZREM', HELD, unpack(members))
    call('HDEL', DATA, unpack(done))
    if size[META] > 0 then call('HDEL', META, unpack(done)) end
    if size[PROGRESS] > 0 then call('HDEL', PROGRESS, unpack(done)) end
    if size[NOTES] > 0 then call('HDEL', NOTES, unpack(done)) end
    if size[BLOCKED] > 0 then
      for i, text in ipairs(call('HMGET', BLOCKED, unpack(done))) do
        if text then release_blocked(done[i], text) end
      end
    end
  end
end

for i = 1, others do
  local at = others_at + 6 * (i - 1)
  local id, fence, verb, kind, ms, message =
    ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], tonumber(ARGV[at + 5]), ARGV[at + 6]
  local lease = owned(call('HGET', LEASES, id), fence)
  verdicts[completed + i] = lease and '1' or '0'
  if lease then
    changed = true
    touched[lease.holder] = true
    end_lease(id, lease)
    local m = read_meta(call('HGET', META, id))
    m.priority = math.floor(lease.score / PRIORITY_STEP)
    if lease.cancelled then
      remove(id)
    elseif verb == 'l' then
      put_back(id, m, 0, lease.score)
    elseif verb == 'r' then
      m.failures = m.failures + 1
      if message ~= '' then call('HSET', NOTES, id, message) end
      put_back(id, m, (kind == '0' and 0) or (kind == '1' and ms) or from_now(ms))
    else
      m.failures = m.failures + 1
      bury(id, m, 1, message, most_dead)
    end
  end
end

for name in pairs(touched) do drop_holder_if_done(name) end

---------------------------------------------------------------------------------------------------
-- Take in what was pushed by hand: each element of the inbox becomes a plain job

if size[INBOX] > 0 then
  changed = true
  for _, data in ipairs(call('RPOP', INBOX, math.min(size[INBOX], 100))) do
    local id
    repeat id = 'inbox-' .. string.format('%.0f', next_seq()) until call('HEXISTS', DATA, id) == 0
    call('HSET', DATA, id, data)
    call('ZADD', READY, 5 * PRIORITY_STEP + state.seq, id)
    came = came + 1
  end
end

---------------------------------------------------------------------------------------------------
-- Promote what is due

local before = came
promote(MOST)
changed = changed or came > before

---------------------------------------------------------------------------------------------------
-- Sweep: take back what lost holders held, to the front, in the old order. A holder with a name beats
-- regularly; after a silence of the whole queue it gets time to do so before it is called lost.

local taken_back = 0
local being_swept = false
for _, lost in ipairs(size[HOLDERS] > 0 and call('ZRANGE', HOLDERS, '-inf', now, 'BYSCORE', 'LIMIT', 0, 100) or {}) do
  local ended = tonumber(call('ZSCORE', HOLDERS, lost))
  if is_raw(lost) or now >= state.grace or ended <= state.grace_from then
    changed = true
    local budget = MOST - taken_back
    local members = budget > 0 and held_by(lost, budget) or {}
    for _, member in ipairs(members) do
      local id = string.sub(member, #lost + 2)
      local text = call('HGET', LEASES, id)
      local lease = text and read_lease(text)
      if not lease or lease.holder ~= lost then
        call('ZREM', HELD, member) -- an index entry with no lease behind it
      else
        end_lease(id, lease)
        local m = read_meta(call('HGET', META, id))
        m.priority = math.floor(lease.score / PRIORITY_STEP)
        m.stalls = m.stalls + 1
        if lease.cancelled or call('HEXISTS', DATA, id) == 0 then
          remove(id)
        elseif m.stalls > m.max_stalls then
          bury(id, m, 2, 'the lease was lost ' .. m.stalls .. ' times; max_stalls is ' .. m.max_stalls, most_dead)
        else
          put_back(id, m, 0, lease.score)
        end
      end
      taken_back = taken_back + 1
    end
    if #members < budget then
      call('ZREM', HOLDERS, lost)
    else
      call('ZADD', HOLDERS, 0, lost) -- more to take back: until then it is known as lost, and cannot come to life again
      being_swept = being_swept or lost == holder
    end
  end
end

---------------------------------------------------------------------------------------------------
-- Lease

local ids, scores, payloads = {}, {}, {}
local base = math.max(state.fence, wall_us)
if not (state.paused or being_swept) then
  -- The first few tell how large the jobs are; a reply is bounded in bytes as well as in number.
  local bytes, piece = 0, FIRST_PIECE
  while #ids < wanted and bytes < MOST_BYTES do
    local popped = call('ZPOPMIN', READY, math.min(wanted - #ids, piece))
    if #popped == 0 then break end
    changed = true
    local names, taken = {}, #ids
    for i = 1, #popped / 2 do names[i] = popped[2 * i - 1] end
    local found = call('HMGET', DATA, unpack(names))
    for i = 1, #names do
      if found[i] then
        taken = taken + 1
        ids[taken], scores[taken], payloads[taken] = names[i], popped[2 * i], found[i]
        bytes = bytes + #found[i]
      else
        call('HDEL', META, names[i]) -- an index entry with no job: let it go
      end
    end
    piece = math.max(1, math.min(MOST, math.floor((MOST_BYTES - bytes) * taken / (bytes + taken + 1))))
  end
end
if #ids > 0 then
  local leases, members = {}, {}
  local prefix = holder .. '\0'
  for i = 1, #ids do
    local id = ids[i]
    leases[2 * i - 1], leases[2 * i] = id, write_lease(0, base + i, tonumber(scores[i]), holder)
    members[2 * i - 1], members[2 * i] = 0, prefix .. id
  end
  if #ids >= LARGE_BATCH then leases[2] = leases[2] .. PADDING end
  call('HSET', LEASES, unpack(leases))
  call('ZADD', HELD, unpack(members))
  call('ZADD', HOLDERS, 'GT', now + lease_ms, holder)
  state.fence = base + #ids
end

---------------------------------------------------------------------------------------------------
-- Idle: register to be woken, and say when to look again without being told

local wait = -1
if waiter ~= '' then
  if #ids > 0 then
    if size[IDLE] > 0 then call('ZREM', IDLE, waiter) end
  else
    local until_ms = tonumber(size[IDLE] > 0 and call('ZSCORE', IDLE, waiter) or 0) or 0
    if until_ms < now + 30000 then
      call('ZREMRANGEBYSCORE', IDLE, '-inf', '(' .. string.format('%.0f', now))
      call('ZADD', IDLE, now + 60000, waiter)
      call('PEXPIRE', IDLE, 120000) -- waiters that died are no reason to keep a key for ever
    end
    if not state.paused then
      local first = call('ZRANGE', SCHEDULED, 0, 0, 'WITHSCORES')[2]
      local expiry = call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')[2]
      if first then wait = math.max(0, tonumber(first) - due) end
      if expiry then
        local left = tonumber(expiry) + 1 - now
        if left <= 0 then left = math.max(50, state.grace - now) end -- lost already, but given grace
        wait = (wait < 0 or left < wait) and left or wait
      end
    end
  end
end

-- An idle look writes nothing; but while there are holders the clock is kept, so that a silence can be told from a quiet hour.
if changed or state.jumped or (size[HOLDERS] > 0 and now - (state.clock or 0) >= STEP_CAP) then
  close(table.concat(verdicts) .. ' ' .. string.format('%.0f', base) .. ' ' .. #ids .. ' ' .. taken_back)
end
if not state.paused then
  wake(came > #ids and math.min(came, call('ZCARD', READY)) or 0)
end
return hand_out(table.concat(verdicts), base, ids, payloads, scores, wait, taken_back)
