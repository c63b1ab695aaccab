#!lua flags=allow-oom
-- uses operations leases publish_events wake
-- A turn settles and leases in one step: settle outcomes, take in the inbox, promote due jobs, take jobs back from lost
-- holders, lease the next jobs. Each part may be empty.
--
-- ARGV     [1] to [3]: see shared/keys.lua
--          [4] holder: the name of a runner, or of a program's own holder, or "" for a raw lease (a holder of its own is made for it)
--          [5] lease time in ms  [6] how many jobs are wanted  [7] max_dead
--          [8] waiter: "" or the name to wake when jobs come; registered while idle, removed when jobs were leased
--          [9] "1": lease only if the holder is known, because a holder that was declared lost must register again
--          [10] n completed jobs, then n ids, each once, then the n fences (8 bytes each, big-endian) as one string, then "0",
--              or n results: for how many ms to keep them (8 bytes each, as one string; 0 keeps none), then the n results
--          […] m other outcomes, then for each: id, fence, verb, n, then the verb's n arguments:
--                complete   keep_ms, result. A completed job with jobs to hand over
--                release
--                retry      kind of time and ms (see CHANGE), message
--                snooze     kind of time and ms (see CHANGE), message. The job puts itself off: not a failure
--                fail       keep_ms, message
--                crash      keep_ms, max_stalls of its task (for a job without its own limits, or -1), ms until its next
--                           attempt, message. Certainly this job crashed its process
--                suspect    message. One of several jobs whose process crashed
--                unknown    task. The worker does not know this task
--                broken     max_broken of the queue, reason. The job cannot be decoded. A queue with max_broken broken jobs
--                           releases the job instead, and never drops it: this attempt did not run it
--                unhandled  a failure job that no handler takes
--                keep_ms is how long to keep the result or failure for callers that ask for it; 0 keeps nothing
--          […] k hand-overs, then for each: which of the other outcomes it belongs to (from 1), queue ("" this one),
--              id, data, change. It is added only if its parent's outcome was accepted.
--          […] only if the caller claims parked jobs: t tasks that it knows, then their names. Their parked jobs are leased
--              before the ready ones
-- KEYS     after the queue's own: one for each result that may have to be kept: of the completed jobs, then of the others
-- returns  { the clock's reading, a digit for each outcome: 0 stale (the lease was lost), 1 accepted, 2 accepted and
--            released because the queue has max_broken broken jobs already,
--            fence before the first lease, ids, data, META records, priorities (one if all are equal),
--            ms until the next run time or end of a lease or -1, jobs taken back from lost holders,
--            jobs in the outbox, ms until the next tick of a schedule or -1,
--            1 if nothing was leased because the holder is not known, number of registered waiters,
--            and only if one of them is not 0 or empty: { how many of the oldest dead jobs were dropped, ids of the jobs that
--            expired, 1 if the turn stopped at one of its limits, 1 if the caller has claimed all parked jobs of its tasks,
--            parked jobs when the turn began } }
-- errors   FORMAT, STALEOP, WRONGTYPE; nothing is written then.

local FIRST_BATCH = 16 -- jobs that are read before their size is known; also how many parked jobs a turn claims

local holder = ARGV[4] ~= '' and ARGV[4] or '.' .. ARGV[1] .. '.' .. ARGV[2]
local lease_ms, wanted, max_dead, waiter = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local completed = tonumber(ARGV[10])
local results_at = 12 + completed
local others_at = results_at + 1 + (completed > 0 and ARGV[results_at] ~= '0' and completed + 1 or 0)
local others = tonumber(ARGV[others_at])

local lost = 0
local dropped = 0
local expired = {} -- ids
local claimed -- ids and scores of parked jobs for the caller
local claimed_count = 0
local claimed_all = false
local by_priority = true -- the leased jobs are in order of priority
local more = false -- whether this turn stopped at one of its limits: the next one may find jobs
local repeated = begin_op()

local function turn_reply(flags, base, ids, data, metas, scores, wait, swept)
  local tick = size[TICKS] > 0 and math.max(0, call('ZRANGE', TICKS, 0, 0, 'WITHSCORES')[2] - due) or -1
  local priorities = {}
  if #ids > 0 then
    -- Ready jobs are leased in order of priority, so the first and the last tell. The answer to a repeated call may have
    -- gaps.
    local same = not repeated and by_priority and priority_of(scores[1]) == priority_of(scores[#ids])
    for i = 1, same and 1 or #ids do priorities[i] = priority_of(scores[i]) end
  end
  local rare
  if dropped > 0 or #expired > 0 or more or claimed_all or size[PARKED] > 0 then
    rare = { dropped, expired, more and 1 or 0, claimed_all and 1 or 0, size[PARKED] }
  end
  return { reading(), flags, base, ids, data, metas, priorities, wait, swept, size[OUTBOX], tick, lost, size[IDLE], rare }
end

measure('ZCARD', READY, HELD, HOLDERS)
measure('HLEN', LEASES, DATA)
if call('EXISTS', SCHEDULED, IDLE, META, BLOCKED, PROGRESS, LAST_ERRORS) > 0 then
  measure('ZCARD', SCHEDULED, IDLE)
  measure('HLEN', META, BLOCKED, PROGRESS, LAST_ERRORS)
end
if call('EXISTS', INBOX, DEAD, BROKEN, DEAD_RECORDS, PARKED, OUTBOX, WATCHED, TICKS, ENDED) > 0 then
  measure('LLEN', INBOX)
  measure('ZCARD', DEAD, BROKEN, PARKED, OUTBOX, WATCHED, TICKS, ENDED)
  measure('HLEN', DEAD_RECORDS)
end
if repeated then
  if type(repeated) == 'table' then return repeated end
  -- The recorded answer has the range of fences. The reply is the part of them that the holder still holds.
  local flags, base, count, swept, limited = string.match(repeated, '^(%d*) (%d+) (%d+) (%d+) (%d)$')
  base, count, more = tonumber(base), tonumber(count), limited == '1'
  local ids, scores, data = {}, {}, {}
  if count > 0 then
    local found, members = 0, {}
    repeat -- a worker may hold many more jobs than it leases in one turn
      members = held_by(holder, MAX_ITEMS, members[#members])
      local names = {}
      for i, member in ipairs(members) do names[i] = string.sub(member, #holder + 2) end
      for i, text in ipairs(#names > 0 and call('HMGET', LEASES, unpack(names)) or {}) do
        local lease = text and read_lease(text)
        if lease and lease.fence > base and lease.fence <= base + count then
          found = found + 1
          ids[lease.fence - base] = names[i]
          scores[lease.fence - base] = string.format('%.0f', lease.score)
        end
      end
    until found == count or #members < MAX_ITEMS
    -- The n-th id has the n-th fence: a job that is not held any more leaves an empty id (which has no data).
    for i = 1, count do
      ids[i], scores[i] = ids[i] or '', scores[i] or '0'
    end
    data = call('HMGET', DATA, unpack(ids))
  end
  local metas = count > 0 and size[META] > 0 and call('HMGET', META, unpack(ids)) or {}
  return turn_reply(flags, base, ids, data, metas, scores, more and 0 or -1, tonumber(swept))
end

local changed = false

---------------------------------------------------------------------------------------------------
-- Settle

local flags = {}
local settled_holders = {} -- raw holders among them may now be empty

local result_index = KEYS_OF_QUEUE -- index of the last used result key, after the queue's own keys

local done = {} -- ids of the completed jobs whose outcome was accepted
if completed > 0 then
  done = { unpack(ARGV, 11, 10 + completed) }
  local fences = ARGV[11 + completed]
  local members, count = {}, 0
  local sub = string.sub
  for i, text in ipairs(call('HMGET', LEASES, unpack(done))) do
    -- Compares the fences packed, without decoding the record: this is the hottest loop.
    if text and sub(text, FENCE_AT, FENCE_AT + 7) == sub(fences, 8 * i - 7, 8 * i) then
      local id, owner = done[i], sub(text, LEASE_SIZE + 1, LEASE_SIZE + string.byte(text, LEASE_SIZE))
      count = count + 1
      flags[i], settled_holders[owner] = '1', true
      done[count], members[count] = id, owner .. '\0' .. id
    else
      flags[i] = '0'
    end
  end
  for i = count + 1, completed do done[i] = nil end
  if #done > 0 then
    changed = true
    call('HDEL', LEASES, unpack(done))
    call('ZREM', HELD, unpack(members))
    call('HDEL', DATA, unpack(done))
    if size[META] > 0 then call('HDEL', META, unpack(done)) end
    if size[PROGRESS] > 0 then call('HDEL', PROGRESS, unpack(done)) end
    if size[LAST_ERRORS] > 0 then call('HDEL', LAST_ERRORS, unpack(done)) end
    if ARGV[results_at] ~= '0' then
      local lifetimes, has_marks = ARGV[results_at + 1], size[ENDED] > 0
      local packed, expires_at -- nearly always the same for all
      for i = 1, completed do
        local keep_ms = sub(lifetimes, 8 * i - 7, 8 * i)
        if keep_ms ~= packed then
          packed, expires_at = keep_ms, struct.unpack('>I8', keep_ms)
          expires_at = expires_at > 0 and string.format('%.0f', wall + expires_at)
        end
        if expires_at then
          result_index = result_index + 1 -- the caller passes a key for it, used or not
          if flags[i] == '1' then
            call('SET', KEYS[result_index], 'd' .. ARGV[results_at + 1 + i], 'PXAT', expires_at)
            if has_marks then call('ZREM', ENDED, ARGV[10 + i]) end
          end
        end
      end
    end
    if size[WATCHED] > 0 then
      for _, id in ipairs(done) do publish_event(id, 'completed') end
    end
  end
end

---------------------------------------------------------------------------------------------------
-- Rare work. Its functions are defined inside the `if` below, because the server creates a function at each call

local swept = 0
local caller_is_lost = false
local lost_holders = size[HOLDERS] > 0 and call('ZRANGE', HOLDERS, '-inf', now, 'BYSCORE', 'LIMIT', 0, 100) or {}
if others > 0 or size[BLOCKED] + size[INBOX] + size[SCHEDULED] > 0 or #lost_holders > 0 then
  -- uses here marks meta changes place_job enqueue_one take_in finish_job

  if size[BLOCKED] > 0 and #done > 0 then
    for i, text in ipairs(call('HMGET', BLOCKED, unpack(done))) do
      if text then start_blocked_job(done[i], text) end
    end
  end

  local claims_at = others_at + 2
  if others > 0 then
    local settle = {}
    local announced = {} -- tasks

    -- Stores a result: a letter for how the job ended, then the result or message.
    local function keep_result(letter, keep_ms, text)
      if keep_ms ~= '0' then call('SET', KEYS[result_index], letter .. text, 'PX', keep_ms) end
    end

    function settle.complete(id, m, lease, keep_ms, result)
      keep_result('d', keep_ms, result)
      if keep_ms ~= '0' then drop_mark(id) end
      publish_event(id, 'completed')
      remove(id)
    end

    function settle.release(id, m, lease)
      place_again(id, m, 0, lease.score)
      publish_event(id, 'released')
    end

    -- The job runs again at a time. The attempt ended without killing its process.
    local function postpone(id, m, kind, ms, message)
      set_mark(m, SUSPECT, false)
      if message ~= '' then call('HSET', LAST_ERRORS, id, message) end
      place_again(id, m, (kind == '0' and 0) or (kind == '1' and tonumber(ms)) or from_now(tonumber(ms)))
    end

    function settle.retry(id, m, lease, kind, ms, message)
      m.failures = m.failures + 1
      postpone(id, m, kind, ms, message)
      publish_event(id, 'retried')
    end

    function settle.snooze(id, m, lease, kind, ms, message)
      m.extras = m.extras or {}
      m.extras.snoozes = snoozes_of(m) + 1
      postpone(id, m, kind, ms, message)
      publish_event(id, 'snoozed')
    end

    function settle.fail(id, m, lease, keep_ms, message)
      m.failures = m.failures + 1
      end_for_good(id, m, FAILED, message, max_dead)
      keep_result('f', keep_ms, message)
    end

    function settle.broken(id, m, lease, max_broken, reason)
      if call('ZCARD', BROKEN) >= tonumber(max_broken) and not call('ZSCORE', BROKEN, id) then
        settle.release(id, m, lease)
        return '2'
      end
      end_for_good(id, m, UNDECODABLE, reason, max_dead)
    end

    function settle.suspect(id, m, lease, message)
      if message ~= '' then call('HSET', LAST_ERRORS, id, message) end
      set_mark(m, SUSPECT, true)
      place_again(id, m, 0, lease.score)
      publish_event(id, 'crashed')
    end

    function settle.crash(id, m, lease, keep_ms, task_max_stalls, delay_ms, message)
      if message ~= '' then call('HSET', LAST_ERRORS, id, message) end
      m.stalls = m.stalls + 1
      if tonumber(task_max_stalls) >= 0 and not marked(m, LIMITED) then m.max_stalls = tonumber(task_max_stalls) end
      if m.stalls > m.max_stalls then
        keep_result('c', keep_ms, message)
        end_for_good(id, m, CRASHED, message, max_dead)
      else
        place_again(id, m, delay_ms == '0' and 0 or from_now(tonumber(delay_ms)), lease.score)
        publish_event(id, 'crashed')
      end
    end

    function settle.unknown(id, m, lease, task)
      call('HSET', LAST_ERRORS, id, 'a worker did not know the task ' .. task .. '; the job waits for one that does')
      call('ZADD', PARKED, 0, task .. '\0' .. id)
      call('PEXPIRE', PARKED, 2 * PARK_MS)
      place_again(id, m, due + PARK_MS + PARKED_FRACTION)
      publish_event(id, 'released')
      if not announced[task] then
        announced[task] = true
        call('PUBLISH', PARKED_CHANNEL .. string.match(STATE, '{(.-)}'), task)
      end
    end

    function settle.unhandled(id, m)
      if marked(m, FAILURE_JOB) then
        keep_unhandled_failure(id, max_dead)
      else -- not a failure job: its data has no dead record
        end_for_good(id, m, FAILED, '', max_dead)
      end
    end

    -- The lease of a job, if it has this fence.
    local function owned(text, fence)
      local lease = text and read_lease(text)
      return lease and lease.fence == tonumber(fence) and lease
    end

    local accepted = {}
    local at = others_at
    for i = 1, others do
      local id, fence, verb = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
      local first = at + 5
      at = at + 4 + tonumber(ARGV[at + 4])
      local lease = owned(call('HGET', LEASES, id), fence)
      if (verb == 'complete' or verb == 'fail' or verb == 'crash') and ARGV[first] ~= '0' then
        result_index = result_index + 1 -- the caller passes a key for it, used or not
      end
      accepted[i] = lease and true or false
      flags[completed + i] = lease and '1' or '0'
      if lease then
        changed = true
        settled_holders[lease.holder] = true
        end_lease(id, lease)
        local m = read_meta(call('HGET', META, id))
        m.priority = priority_of(lease.score)
        if lease.cancelled and verb ~= 'complete' then
          remove_cancelled(id)
        else
          flags[completed + i] = settle[verb](id, m, lease, unpack(ARGV, first, at)) or '1'
        end
      end
    end

    -- A completed job can hand over jobs. Those for this queue are enqueued at once, the others go into the outbox.
    at = at + 1
    for _ = 1, tonumber(ARGV[at] or 0) do
      local parent, target, id, data, text = tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
      at = at + 5
      if accepted[parent] and target == '' then
        enqueue_one(id, data, text)
      elseif accepted[parent] then
        -- Numbered like fences, because the other queue remembers the last number even if this queue is deleted and
        -- created again.
        local seq = math.max(state.fence, wall_us) + 1
        state.fence = seq
        call('ZADD', OUTBOX, seq, struct.pack(PARCEL_FORMAT, seq, #target, #id, #text) .. target .. id .. text .. data)
        size[OUTBOX] = size[OUTBOX] + 1
      end
    end
    claims_at = at + 1
  end

  -------------------------------------------------------------------------------------------------
  -- Take in the inbox: each element becomes a plain job

  if size[INBOX] > 0 then
    changed = true
    -- Appends the checksum that a client appends, with the only hash that Lua has here (see native/records.py).
    local SEALED = '\137WLSEAL' -- an unsealed payload with this prefix is marked as not sealed (see sealing.py)
    local function add_sum(data)
      if string.sub(data, 1, #SEALED) == SEALED then data = SEALED .. '\0' .. data end
      local sum = string.gsub(string.sub(redis.sha1hex(data), 1, 8), '..', function(hex) return string.char(tonumber(hex, 16)) end)
      return data .. sum .. 's'
    end
    for _, data in ipairs(call('RPOP', INBOX, math.min(size[INBOX], 100))) do
      local id
      repeat id = 'inbox-' .. string.format('%.0f', next_seq()) until call('HEXISTS', DATA, id) == 0
      call('HSET', DATA, id, add_sum(data))
      call('ZADD', READY, IMPLIED_PRIORITY * PRIORITY_STEP + state.seq, id)
      made_ready = made_ready + 1
    end
  end

  -------------------------------------------------------------------------------------------------
  -- Promote due jobs

  local before = made_ready
  promote(MAX_ITEMS)
  changed = changed or made_ready > before

  -------------------------------------------------------------------------------------------------
  -- Sweep: take jobs back from lost holders, to the front, in the old order. A named holder beats regularly. After a
  -- silence of the whole queue it gets a grace to beat before it counts as lost.

  local examined = 0 -- entries of HELD, of which not all may have a lease
  for _, lost_holder in ipairs(lost_holders) do
    local ended = tonumber(call('ZSCORE', HOLDERS, lost_holder))
    if is_raw(lost_holder) or now >= state.grace or ended <= state.grace_from then
      changed = true
      local budget = MAX_ITEMS - examined
      local members = budget > 0 and held_by(lost_holder, budget) or {}
      for _, member in ipairs(members) do
        local id = string.sub(member, #lost_holder + 2)
        local text = call('HGET', LEASES, id)
        local lease = text and read_lease(text)
        if not lease or lease.holder ~= lost_holder then
          call('ZREM', HELD, member) -- an index entry without a lease
        else
          end_lease(id, lease)
          swept = swept + 1
          local m = read_meta(call('HGET', META, id))
          m.priority = priority_of(lease.score)
          m.stalls = m.stalls + 1
          if lease.cancelled or call('HEXISTS', DATA, id) == 0 then
            remove_cancelled(id)
          elseif m.stalls > m.max_stalls then
            end_for_good(id, m, STALLED, m.stalls .. ' lost leases and crashes; max_stalls is ' .. m.max_stalls, max_dead)
          else
            place_again(id, m, 0, lease.score)
            publish_event(id, 'stalled')
          end
        end
        examined = examined + 1
      end
      if #members < budget then
        call('ZREM', HOLDERS, lost_holder)
      else
        call('ZADD', HOLDERS, 0, lost_holder) -- more to take back: marked as lost until then, so that it cannot beat again
        more = true
        caller_is_lost = caller_is_lost or lost_holder == holder
      end
    end
  end

  -------------------------------------------------------------------------------------------------
  -- Claim: parked jobs of tasks that the caller knows. It leases them below, before the ready ones: as ready jobs they could
  -- go to a worker that does not know them, again and again.

  local tasks = tonumber(ARGV[claims_at]) or 0
  if tasks > 0 and wanted > 0 and not (state.paused or caller_is_lost)
      and (ARGV[9] ~= '1' or call('ZSCORE', HOLDERS, holder)) then
    -- uses here parked
    local limit, found = math.min(wanted, FIRST_BATCH), {}
    local budget = limit
    for i = claims_at + 1, claims_at + tasks do
      budget = budget - take_parked(ARGV[i], budget, function(id, m)
        m.seq = 0
        save_or_delete_meta(id, m, false)
        found[#found + 1] = id
        found[#found + 1] = string.format('%.0f', m.priority * PRIORITY_STEP + next_seq())
      end)
    end
    changed = changed or budget < limit
    claimed_all = budget > 0
    if #found > 0 then claimed, claimed_count, by_priority = found, #found / 2, false end
  end
end

for name in pairs(settled_holders) do drop_holder_if_done(name) end

---------------------------------------------------------------------------------------------------
-- Lease

local ids, scores, payloads, metas = {}, {}, {}, {}
local orphans -- ids of ready entries without a job, if there are any
local base = math.max(state.fence, wall_us)
if wanted > 0 and ARGV[9] == '1' and (caller_is_lost or not call('ZSCORE', HOLDERS, holder)) then
  lost = 1
elseif not (state.paused or caller_is_lost) then
  -- The first batch shows how large the jobs are; a turn is bounded in the bytes that it reads as well as in number.
  local read, bytes, piece = 0, 0, FIRST_BATCH
  while #ids < wanted and bytes < MAX_REPLY_BYTES and #expired < MAX_ITEMS do
    local asked = math.min(wanted - #ids, piece)
    local popped = claimed or call('ZPOPMIN', READY, asked)
    if #popped == 0 then break end
    changed = true
    local names, taken = {}, #ids
    read = read + #popped / 2
    for i = 1, #popped / 2 do names[i] = popped[2 * i - 1] end
    local found = call('HMGET', DATA, unpack(names))
    local records = size[META] > 0 and call('HMGET', META, unpack(names))
    for i = 1, #names do
      local meta = records and records[i]
      -- Compares one byte of the packed record, without decoding it: few jobs have an expiry.
      local is_expired = meta and #meta > META_SIZE and string.byte(meta, MARKS_AT) % (2 * EXPIRES) >= EXPIRES
      if is_expired then
        local fine, extras = pcall(cmsgpack.unpack, string.sub(meta, META_SIZE + 1))
        is_expired = fine and type(extras) == 'table' and (tonumber(extras.expires) or due + 1) <= due
      end
      bytes = bytes + (found[i] and #found[i] or 0)
      if is_expired then
        expired[#expired + 1] = names[i]
      elseif found[i] then
        taken = taken + 1
        ids[taken], scores[taken], payloads[taken] = names[i], popped[2 * i], found[i]
        if records then metas[taken] = meta end
      else -- an index entry without a job
        call('HDEL', META, names[i])
        orphans = orphans or {}
        orphans[#orphans + 1] = names[i]
      end
    end
    if not claimed and #names < asked then break end
    claimed = nil
    piece = math.max(1, math.min(MAX_ITEMS, math.floor((MAX_REPLY_BYTES - bytes) * read / (bytes + read + 1))))
  end
  more = more or #expired >= MAX_ITEMS or bytes >= MAX_REPLY_BYTES
end
if #expired > 0 or orphans then
  -- uses here marks
  leave_marks(orphans or {}, LOST)
  leave_marks(expired, EXPIRED)
end
if #expired > 0 then
  call('HDEL', DATA, unpack(expired))
  call('HDEL', META, unpack(expired))
  call('HDEL', LAST_ERRORS, unpack(expired)) -- this turn may have made the key
  for _, id in ipairs(expired) do publish_event(id, 'expired') end
end
if #ids > 0 then
  local leases, members = {}, {}
  local prefix = holder .. '\0'
  for i = 1, #ids do
    local id = ids[i]
    leases[2 * i - 1], leases[2 * i] = id, write_lease(0, base + i, scores[i], holder)
    members[2 * i - 1], members[2 * i] = '0', prefix .. id
  end
  if #ids >= LARGE_BATCH then leases[2] = leases[2] .. PADDING end
  call('HSET', LEASES, unpack(leases))
  call('ZADD', HELD, unpack(members))
  call('ZADD', HOLDERS, 'GT', lease_end(lease_ms), holder)
  state.fence = base + #ids
  if size[WATCHED] > 0 then
    for _, id in ipairs(ids) do publish_event(id, 'started') end
  end
end

---------------------------------------------------------------------------------------------------
-- Idle: register the waiter, and tell it when to poll without a wake-up

local wait = -1
if waiter ~= '' then
  if #ids > 0 then
    if size[IDLE] > 0 then call('ZREM', IDLE, waiter) end
  else
    local until_ms = tonumber(size[IDLE] > 0 and call('ZSCORE', IDLE, waiter) or 0) or 0
    if until_ms < now + RENEW_BELOW_MS then -- a worker makes a turn before that, so its registration never ends
      call('ZREMRANGEBYSCORE', IDLE, '-inf', '(' .. string.format('%.0f', now))
      call('ZADD', IDLE, now + REGISTERED_MS, waiter)
      call('PEXPIRE', IDLE, 2 * REGISTERED_MS) -- the key goes soon after the last waiter died
    end
    if not state.paused then
      if more then wait = 0 end
      local first = wait < 0 and call('ZRANGE', SCHEDULED, 0, 0, 'WITHSCORES')[2]
      local expiry = size[HELD] > 0 and call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')[2] -- nothing held: nothing to take back
      if first then wait = math.max(0, tonumber(first) - due) end
      if expiry then
        local left = tonumber(expiry) + 1 - now
        if left <= 0 then left = math.max(50, state.grace - now) end -- already late, but within the grace
        wait = (wait < 0 or left < wait) and left or wait
      end
    end
  end
end

-- An idle turn writes nothing, with two exceptions:
-- * A repeated call ("!"): its first try may still arrive.
-- * While there are holders, write the clock at least every MAX_STEP_MS. Otherwise the next call cannot measure the silence.
if changed or state.jumped or ARGV[#ARGV] == '!' or (size[HOLDERS] > 0 and now - (state.clock or 0) >= MAX_STEP_MS) then
  commit_op(table.concat(flags) .. ' ' .. string.format('%.0f', base) .. ' ' .. #ids .. ' ' .. swept .. (more and ' 1' or ' 0'))
end
if not state.paused then
  wake(made_ready > #ids - claimed_count and math.min(made_ready, call('ZCARD', READY)) or 0)
end
return turn_reply(table.concat(flags), base, ids, payloads, metas, scores, wait, swept)
