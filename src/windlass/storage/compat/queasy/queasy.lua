-- Queasy's own part; layout.py has its key map and the decisions. Functions that Queasy's document names have the same names
-- here. The token of a run is "j" and the id of a job, or "f" and the id of a failure job.

local JOBS = { waiting = KEYS[4], active = KEYS[5], mark = 'j', prefix = '' }
local FAILURES = { waiting = KEYS[6], active = KEYS[7], mark = 'f', prefix = 'failure-' }
local QUEUES = { FAILURES, JOBS } -- in the order in which jobs are taken from them
local POLL_MS = 1000 -- a waiter polls at least that often, so only run times within it need a wake-up
local PARK_MS = 300000 -- 5 min until a job that could not run here is tried again
local PLACEHOLDER_SCORE = '-9007199254740991' -- lower than the score of any blocked job
expect('zset', JOBS.waiting, JOBS.active, FAILURES.waiting, FAILURES.active)
layout.sweep_every = 1000

-- Newer releases keep the waiting jobs in `{queue}` itself and their clients in `{queue}:expiry`, but give the hashes the same
-- names. Each generation would take the other's jobs for leftovers, so every script stops here, before it writes anything.
local NEWER = {}
for i, queue in ipairs(QUEUES) do
  NEWER[2 * i - 1] = string.sub(queue.waiting, 1, -#':waiting' - 1)
  NEWER[2 * i] = NEWER[2 * i - 1] .. ':expiry'
end
if call('EXISTS', unpack(NEWER)) > 0 then
  local found = NEWER
  while call('EXISTS', found[1]) == 0 do found = { unpack(found, 2) } end
  error(redis.error_reply('GENERATION the key ' .. found[1] .. ' belongs to a newer release of Queasy (0.3 and later). '
    .. 'The layout queasy speaks the releases before it, which keep a queue in ' .. JOBS.waiting))
end

local function waiting_job(queue, id) return queue.waiting .. '_job:' .. id end
local function active_job(queue, id) return queue.active .. '_job:' .. id end
local function is_hash(key) return call('TYPE', key).ok == 'hash' end

local function place_of(run)
  local queue = string.sub(run.token, 1, 1) == FAILURES.mark and FAILURES or JOBS
  return queue, string.sub(run.token, 2)
end

-- A failure job has the id of the failed job, in a queue of its own. Users see another name, because both may exist at once.
local function places_named(name)
  local places = { { queue = JOBS, id = name } }
  if string.sub(name, 1, #FAILURES.prefix) == FAILURES.prefix then
    places[2] = { queue = FAILURES, id = string.sub(name, #FAILURES.prefix + 1) }
  end
  return places
end

---------------------------------------------------------------------------------------------------
-- Reading hashes

-- A number that a peer wrote, limited to the range that META has room for.
local function number(text, default, maximum)
  local found = tonumber(text) or default
  return math.floor(math.max(0, math.min(found, maximum)))
end

local COUNTS = { 'maxFailures', 'maxStalls', 'minBackoff', 'maxBackoff', 'failureCount', 'stallCount' }
local PLAIN = {
  maxFailures = IMPLIED_MAX_FAILURES, maxStalls = IMPLIED_MAX_STALLS, minBackoff = IMPLIED_MIN_BACKOFF,
  maxBackoff = IMPLIED_MAX_BACKOFF, failureCount = 0, stallCount = 0,
}

local function read_counts(key)
  local found, counts = call('HMGET', key, unpack(COUNTS)), {}
  for i, field in ipairs(COUNTS) do
    local maximum = string.find(field, 'Backoff') and 2 ^ 53 or 2 ^ 32 - 1
    counts[field] = number(found[i], PLAIN[field], maximum)
  end
  return counts
end

local function pack_counts(c, marks)
  return pack_meta({ version = META_VERSION, marks = marks, priority = IMPLIED_PRIORITY, max_failures = c.maxFailures,
    max_stalls = c.maxStalls, failures = c.failureCount, stalls = c.stallCount, min_backoff = c.minBackoff,
    max_backoff = c.maxBackoff, seq = 0, extras_length = 0 })
end

-- The META record of a job. Limits other than the plain ones were given with the job and override those of its task: a
-- producer without limits writes the plain ones.
local function read_meta(key, marks)
  local c = read_counts(key)
  local limited = call('HGET', key, 'limited')
  for field, plain in pairs(PLAIN) do
    if not string.find(field, 'Count') and c[field] ~= plain then limited = true end
  end
  return pack_counts(c, (limited and LIMITED or 0) + (marks or 0))
end

-- A run time of 0 has no sign: blocked, it has the score -1, and 1 means the same as 0.
local function run_time(score)
  local at = math.abs(score)
  return at > 1 and at or 0
end

-- The run time in a hash; 0 if a peer wrote no number.
local function read_run_at(key)
  local found = tonumber(call('HGET', key, 'runAt'))
  return found and found >= 0 and found or 0
end

local function score_of(queue, id)
  local score = call('ZSCORE', queue.waiting, id)
  return score and is_hash(waiting_job(queue, id)) and tonumber(score) or nil
end

---------------------------------------------------------------------------------------------------
-- Waiting and blocked

local UPDATED_BY = {
  data = 'updateData', error = 'updateData', job = 'updateData', maxFailures = 'updateMaxFailures',
  maxStalls = 'updateMaxStalls', minBackoff = 'updateMinBackoff', maxBackoff = 'updateMaxBackoff',
}
local FLAGS = {
  'updateData', 'updateMaxFailures', 'updateMaxStalls', 'updateMinBackoff', 'updateMaxBackoff', 'resetCounts',
  'updateRunAt',
}

-- Whether a flag is set; a missing flag has the default of Queasy's document.
local function is_set(c, flag)
  local said = c[flag]
  if said == nil and flag == 'resetCounts' then said = c.updateData end
  return said ~= 'false' and said ~= '0' and said ~= ''
end

local function read_hash(key)
  local c, all = {}, call('HGETALL', key)
  for i = 1, #all, 2 do c[all[i]] = all[i + 1] end
  return c
end

local function read_flags(key)
  local c, found = {}, call('HMGET', key, unpack(FLAGS))
  for i, flag in ipairs(FLAGS) do c[flag] = found[i] or nil end
  return c
end

local function merge_run_at(old, new, mode)
  if mode == 'false' then return old end
  if mode == 'ifLater' then return math.max(old, new) end
  if mode == 'ifEarlier' then return math.min(old, new) end
  return new
end

-- Merges the flags of several changes that wait behind one job: a field is updated if any of them updates it.
local function fold_flags(old, c)
  local folded = {}
  for _, flag in ipairs(FLAGS) do
    if flag ~= 'updateRunAt' then
      folded[flag] = (is_set(c, flag) or (old ~= nil and is_set(old, flag))) and 'true' or 'false'
    elseif old and (c.updateRunAt == 'false' or (old.updateRunAt or 'true') == 'true') then
      folded[flag] = old.updateRunAt or 'true'
    else
      folded[flag] = c.updateRunAt or 'true'
    end
  end
  return folded
end

-- The fields and values to write for these flags, and the fields to delete. A flag that is set is not written: a missing flag
-- is set for all peers, but the published Lua compares it with a boolean and takes the text "true" for a flag that is not set.
local function write_flags(folded)
  local set, left_out = {}, {}
  for _, flag in ipairs(FLAGS) do
    local is_default = folded[flag] == 'true' and (flag ~= 'resetCounts' or folded.updateData == 'true')
    if is_default then
      left_out[#left_out + 1] = flag
    else
      set[#set + 1] = flag
      set[#set + 1] = folded[flag]
    end
  end
  return set, left_out
end

-- addToWaiting, with the merged run time.
local function add_to_waiting(queue, id, run_at, is_blocked)
  call('ZADD', queue.waiting, is_blocked and -math.max(run_at, 1) or run_at, id)
  if not is_blocked and run_at <= now + POLL_MS then made_ready = made_ready + 1 end
end

-- `before` is the score of the waiting job with this id, if any; `c` has the fields and flags of a hash, and `runAt`.
local function upsert_job(queue, id, c, before, is_blocked)
  local key = waiting_job(queue, id)
  local set, left_out = {}, {}
  if is_blocked then set, left_out = write_flags(fold_flags(before and read_flags(key), c)) end
  if not before then
    call('DEL', key) -- a hash without an index entry is no job
  elseif #left_out > 0 then
    call('HDEL', key, unpack(left_out))
  end
  local run_at = before and merge_run_at(run_time(before), c.runAt, c.updateRunAt) or c.runAt
  local function put(field, value)
    set[#set + 1] = field
    set[#set + 1] = value
  end
  put('id', id)
  put('runAt', run_at)
  for field, flag in pairs(UPDATED_BY) do
    if c[field] and c[field] ~= '' then
      if not before or is_set(c, flag) then put(field, c[field]) else call('HSETNX', key, field, c[field]) end
    end
  end
  if c.limited then put('limited', 'true') end
  -- The published Lua takes over whatever counts a blocked job has, so it has none that must not be taken over.
  if is_set(c, 'resetCounts') or not (before or is_blocked) then
    put('failureCount', 0)
    put('stallCount', 0)
  end
  call('HSET', key, unpack(set))
  add_to_waiting(queue, id, run_at, is_blocked)
end

-- The end of clearActive: the blocked job becomes a job of its own with its own run time, whatever its updateRunAt.
local function unblock(queue, id)
  local score = score_of(queue, id)
  if not score then
    call('ZREM', queue.waiting, id)
    return
  end
  local key = waiting_job(queue, id)
  call('HDEL', key, unpack(FLAGS))
  call('HSET', key, 'runAt', run_time(score))
  for _, field in ipairs({ 'failureCount', 'stallCount' }) do call('HSETNX', key, field, 0) end
  add_to_waiting(queue, id, run_time(score), false)
end

local function clear_active(queue, id)
  call('DEL', active_job(queue, id))
  unblock(queue, id)
end

local function do_retry(queue, id, run_at)
  if not is_hash(active_job(queue, id)) then return unblock(queue, id) end
  local key = waiting_job(queue, id)
  local score = score_of(queue, id)
  local behind = score and read_hash(key)
  call('RENAME', active_job(queue, id), key)
  call('HDEL', key, 'lockedBy', unpack(FLAGS))
  if behind then
    behind.runAt = run_time(score)
    upsert_job(queue, id, behind, run_at, false)
  else
    call('HSET', key, 'runAt', run_at)
    add_to_waiting(queue, id, run_at, false)
  end
end

---------------------------------------------------------------------------------------------------
-- Failed for good

-- The limits of failure jobs; without a registered handler those of a handler without options (declaration.py).
local function failure_limits()
  local text = call('HGET', STATE, 'failure_handler')
  if not text or #text < META_SIZE then return 100, 3, 2000, 3600000 end -- or written by another version
  local m = unpack_meta(text)
  return m.max_failures, m.max_stalls, m.min_backoff, m.max_backoff
end

local function on_failure(queue, id, reason, message)
  local key = active_job(queue, id)
  if queue == JOBS and call('EXISTS', FAILURES.waiting) == 1 and is_hash(key) then
    local job = read_counts(key)
    job.failedAt = now
    local failure = { data = call('HGET', key, 'data'), job = cjson.encode(job), runAt = 0 }
    failure.error = cjson.encode({
      name = reason == 'failed' and 'Error' or 'StallError', message = message, reason = reason,
    })
    failure.maxFailures, failure.maxStalls, failure.minBackoff, failure.maxBackoff = failure_limits()
    upsert_job(FAILURES, id, failure, score_of(FAILURES, id), is_hash(active_job(FAILURES, id)))
  end
  clear_active(queue, id)
end

-- Ends a stalled or crashed attempt, as clearStall does: the job goes back to its old place, or fails for good. A crashed
-- job waits first.
local function on_stall(queue, id, reason, message, delay_ms)
  local key = active_job(queue, id)
  if not is_hash(key) then return unblock(queue, id) end
  local c = read_counts(key)
  if c.stallCount >= c.maxStalls then
    on_failure(queue, id, reason, message or
      'the lock was lost ' .. whole(c.stallCount + 1) .. ' times; max_stalls is ' .. whole(c.maxStalls))
    return
  end
  call('HSET', key, 'stallCount', c.stallCount + 1)
  if message then call('HSET', key, 'note', message) end
  do_retry(queue, id, (delay_ms or 0) > 0 and now + delay_ms or read_run_at(key))
end

---------------------------------------------------------------------------------------------------
-- Adding, taking, settling

-- record CHANGE
local CHANGES = {
  updateData = UPDATE_DATA, updateMaxFailures = UPDATE_MAX_FAILURES, updateMaxStalls = UPDATE_MAX_STALLS,
  updateMinBackoff = UPDATE_MIN_BACKOFF, updateMaxBackoff = UPDATE_MAX_BACKOFF, resetCounts = RESET_COUNTS,
}
local MODES = { [0] = 'false', 'true', 'ifLater', 'ifEarlier' }

local function has(flags, flag)
  return math.floor(flags / flag) % 2 == 1
end

local function read_change(data, text)
  local c, kind, ms, flags = { data = data }, 0, 0, PLAIN_FLAGS
  if text == '' then
    for field, plain in pairs(PLAIN) do c[field] = plain end
  else
    local given = unpack_change(text)
    kind, ms, flags = given.when, given.ms, given.flags
    c.maxFailures, c.maxStalls = given.max_failures, given.max_stalls
    c.minBackoff, c.maxBackoff = given.min_backoff, given.max_backoff
  end
  c.runAt = (kind == 0 and 0) or (kind == 1 and ms) or now + ms
  for name, flag in pairs(CHANGES) do c[name] = has(flags, flag) and 'true' or 'false' end
  c.updateRunAt = MODES[math.floor(flags / RUN_AT) % 4]
  c.limited = has(flags, LIMITS_GIVEN) or nil
  return c, flags
end

function layout.check(id)
  expect('hash', waiting_job(JOBS, id), active_job(JOBS, id))
end

function layout.add(id, data, text)
  local c, flags = read_change(data, text)
  local before, runs = score_of(JOBS, id), is_hash(active_job(JOBS, id))
  if (before or runs) and has(flags, KEEP) then return 'k' end
  if not before and has(flags, MUST_EXIST) then return 'm' end
  upsert_job(JOBS, id, c, before, runs)
  return (runs and 'b') or (before and 'u') or 'a'
end

local function take_from(queue, holder, ends)
  for _ = 1, MAX_ITEMS do
    local id, score = unpack(call('ZRANGE', queue.waiting, 0, now, 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES'))
    if not id then return nil end
    if is_hash(active_job(queue, id)) then -- blocked: a peer wrote -0 for the run time 0, and the server stored 0
      add_to_waiting(queue, id, run_time(score), true)
    else
      call('ZREM', queue.waiting, id)
      if is_hash(waiting_job(queue, id)) then
        call('RENAME', waiting_job(queue, id), active_job(queue, id))
        call('HSET', active_job(queue, id), 'lockedBy', holder, 'runAt', score)
        call('ZADD', queue.active, whole(ends), id .. ':' .. holder)
        return queue.mark .. id
      end
    end
  end
  return nil
end

local function placeholder(holder)
  return 'windlass:' .. holder
end

-- Whether a holder takes failure jobs: only a worker with a failure handler does, others would drop them. A raw lease takes
-- them if any worker has a handler.
local function takes_failures(holder)
  if is_raw(holder) then return call('ZCOUNT', FAILURES.waiting, PLACEHOLDER_SCORE, PLACEHOLDER_SCORE) > 0 end
  return call('ZSCORE', FAILURES.waiting, placeholder(holder))
end

function layout.take(holder, ends)
  return takes_failures(holder) and take_from(FAILURES, holder, ends) or take_from(JOBS, holder, ends)
end

function layout.describe(run)
  local queue, id = place_of(run)
  local key = active_job(queue, id)
  local found = call('HMGET', key, 'data', 'job', 'error')
  local data, job, failure = found[1] or '', found[2] or '', found[3] or ''
  if queue == FAILURES then data = struct.pack('>I4I4', #job, #failure) .. job .. failure .. data end
  return queue.prefix .. id, data, read_meta(key, queue == FAILURES and FAILURE_JOB)
end

function layout.holds(run)
  local queue, id = place_of(run)
  return call('ZSCORE', queue.active, id .. ':' .. run.holder)
end

function layout.extend(run, ends, never_less)
  local queue, id = place_of(run)
  local member = id .. ':' .. run.holder
  if never_less then
    call('ZADD', queue.active, 'XX', 'GT', whole(ends), member)
  else
    call('ZADD', queue.active, 'XX', whole(deadline(run.holder, ends)), member)
  end
end

-- A peer took the job of this run: its worker stops the attempt like a cancelled one.
function layout.lost(run)
  local queue, id = place_of(run)
  drop_run(run, queue.prefix .. id)
end

local function leave_active(run)
  local queue, id = place_of(run)
  call('ZREM', queue.active, id .. ':' .. run.holder)
  return queue, id, active_job(queue, id)
end

local function put_aside(run, message)
  local queue, id, key = leave_active(run)
  if is_hash(key) then call('HSET', key, 'note', message) end
  do_retry(queue, id, now + PARK_MS)
end

function layout.complete(run)
  clear_active(leave_active(run))
end

function layout.release(run)
  local queue, id, key = leave_active(run)
  do_retry(queue, id, is_hash(key) and read_run_at(key))
end

function layout.snooze(run, kind, ms, message)
  local queue, id, key = leave_active(run)
  if message ~= '' and is_hash(key) then call('HSET', key, 'note', message) end
  do_retry(queue, id, (kind == 0 and now) or (kind == 1 and ms) or now + ms)
end

-- The worker has already decided, by the limits that came with the lease, that there is another attempt.
function layout.retry(run, kind, ms, message)
  local queue, id = place_of(run)
  local key = active_job(queue, id)
  if is_hash(key) then call('HSET', key, 'failureCount', read_counts(key).failureCount + 1) end
  layout.snooze(run, kind, ms, message)
end

function layout.fail(run, _, _, message)
  local queue, id = leave_active(run)
  on_failure(queue, id, 'failed', message)
end

function layout.crash(run, _, delay_ms, message)
  local queue, id = leave_active(run)
  on_stall(queue, id, 'crashed', message, delay_ms)
end

function layout.stall(run)
  local queue, id = leave_active(run)
  on_stall(queue, id, 'stalled')
end

function layout.broken(run, _, _, message) put_aside(run, message) end
function layout.unknown(run, _, _, task) put_aside(run, 'a worker did not know the task ' .. task .. '; the job waits for one that does') end

-- A failure job that no handler takes is dropped; any other job has failed.
function layout.unhandled(run)
  local queue, id = leave_active(run)
  on_failure(queue, id, 'failed', '')
end

---------------------------------------------------------------------------------------------------
-- Upkeep

-- Splits a member into id and worker. Both may contain colons; the existing hash shows where the id ends.
local function split(queue, member)
  local last = string.match(member, '^(.*):')
  local id = last
  while id and not is_hash(active_job(queue, id)) do id = string.match(id, '^(.*):') end
  id = id or last or member
  return id, string.sub(member, #id + 2)
end

local function fence_of(queue, id, worker)
  local fence = call('HGET', RUNS, fence_field(queue.mark .. id))
  local run = fence and run_of(fence)
  return run and run.holder == worker and fence
end

-- clearStall. A job of a live Windlass worker lasts as long as the worker, even if its lease was shorter.
function layout.sweep()
  local taken_back = 0
  for _, queue in ipairs(QUEUES) do
    for _, member in ipairs(call('ZRANGE', queue.active, '-inf', now, 'BYSCORE', 'LIMIT', 0, MAX_ITEMS)) do
      local id, worker = split(queue, member)
      local fence = fence_of(queue, id, worker)
      local ends = fence and tonumber(call('ZSCORE', HOLDERS, worker))
      if ends and ends > now then
        call('ZADD', queue.active, 'XX', whole(ends), member)
      else
        if fence then forget({ fence = fence, holder = worker, token = queue.mark .. id }) end
        call('ZREM', queue.active, member)
        if is_hash(active_job(queue, id)) then taken_back = taken_back + 1 end
        on_stall(queue, id, 'stalled')
      end
    end
  end
  for _, member in ipairs(call('ZRANGE', FAILURES.waiting, PLACEHOLDER_SCORE, PLACEHOLDER_SCORE, 'BYSCORE', 'LIMIT', 0, MAX_ITEMS)) do
    local holder = string.match(member, '^windlass:(.*)$')
    if holder and not call('ZSCORE', HOLDERS, holder) then call('ZREM', FAILURES.waiting, member) end
  end
  return taken_back
end

function layout.beat(holder, _, _, limits)
  if limits and limits ~= '' then
    call('ZADD', FAILURES.waiting, 'NX', PLACEHOLDER_SCORE, placeholder(holder))
    call('HSET', STATE, 'failure_handler', limits)
  end
  return true
end

function layout.unregister(holder)
  if not is_raw(holder) then call('ZREM', FAILURES.waiting, placeholder(holder)) end
end

function layout.due()
  local soonest
  for _, queue in ipairs(QUEUES) do
    local score = call('ZRANGE', queue.waiting, '(' .. whole(now), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
    if score and (not soonest or tonumber(score) < soonest) then soonest = tonumber(score) end
  end
  return soonest and math.max(1, math.min(soonest - now, 2 ^ 31)) or nil
end

---------------------------------------------------------------------------------------------------
-- Orders and questions

function layout.cancel(name)
  for _, place in ipairs(places_named(name)) do
    if score_of(place.queue, place.id) then
      call('ZREM', place.queue.waiting, place.id)
      call('DEL', waiting_job(place.queue, place.id))
      return true
    end
  end
  return false
end

local RANGES = {
  ready = { 0, now }, scheduled = { '(' .. whole(now), '+inf' }, blocked = { '(' .. PLACEHOLDER_SCORE, '(0' }, all = { '-inf', '+inf' },
}

local function count(queue, state)
  if state == 'running' then return call('ZCARD', queue.active) end
  return RANGES[state] and call('ZCOUNT', queue.waiting, unpack(RANGES[state])) or 0
end

function layout.counts()
  local found = {}
  for i, state in ipairs({ 'ready', 'scheduled', 'blocked', 'running' }) do
    found[i] = count(JOBS, state) + count(FAILURES, state)
  end
  found[5], found[6] = 0, 0
  return found
end

local function describe_waiting(queue, id, score)
  local key = waiting_job(queue, id)
  score = tonumber(score)
  local state = (score < 0 and 'blocked') or (score > now and 'scheduled') or 'ready'
  local data, message = unpack(call('HMGET', key, 'data', 'note'))
  local ahead = state ~= 'ready' and run_time(score) > 0 and string.format('%.17g', run_time(score))
  return row(state, queue.prefix .. id, data or '', {
    meta = read_meta(key), run_at = ahead or '', message = message or '',
  })
end

local function describe_active(queue, id, worker)
  local key = active_job(queue, id)
  local data, message = unpack(call('HMGET', key, 'data', 'note'))
  return row('running', queue.prefix .. id, data or '', {
    meta = read_meta(key), holder = worker, fence = fence_of(queue, id, worker) or '', message = message or '',
  })
end

function layout.find(name)
  for _, place in ipairs(places_named(name)) do
    local queue, id = place.queue, place.id
    if is_hash(active_job(queue, id)) then
      return describe_active(queue, id, call('HGET', active_job(queue, id), 'lockedBy') or '')
    end
    local score = score_of(queue, id)
    if score then return describe_waiting(queue, id, score) end
  end
  return nil
end

local function list_from(queue, state, offset, limit, rows)
  if state == 'running' then
    for _, member in ipairs(call('ZRANGE', queue.active, offset, offset + limit - 1)) do
      local id, worker = split(queue, member)
      rows[#rows + 1] = describe_active(queue, id, worker)
    end
    return
  end
  local low, high = unpack(RANGES[state])
  local found = call('ZRANGE', queue.waiting, low, high, 'BYSCORE', 'LIMIT', offset, limit, 'WITHSCORES')
  for i = 1, #found, 2 do rows[#rows + 1] = describe_waiting(queue, found[i], found[i + 1]) end
end

function layout.list(state, offset, limit)
  local rows = {}
  if not RANGES[state] and state ~= 'running' then return rows end
  for _, queue in ipairs(QUEUES) do
    local there = count(queue, state)
    if offset < there and #rows < limit then list_from(queue, state, offset, limit - #rows, rows) end
    offset = math.max(0, offset - there)
  end
  return rows
end

function layout.purge(state)
  local gone, left = 0, 0
  if not RANGES[state] then return gone, left end
  if state == 'all' then call('ZREMRANGEBYSCORE', FAILURES.waiting, PLACEHOLDER_SCORE, PLACEHOLDER_SCORE) end
  for _, queue in ipairs(QUEUES) do
    local low, high = unpack(RANGES[state])
    for _, id in ipairs(call('ZRANGE', queue.waiting, low, high, 'BYSCORE', 'LIMIT', 0, MAX_ITEMS)) do
      gone = gone + call('ZREM', queue.waiting, id)
      call('DEL', waiting_job(queue, id))
    end
    for _, member in ipairs(state == 'all' and call('ZRANGE', queue.active, 0, MAX_ITEMS - 1) or {}) do
      call('DEL', active_job(queue, (split(queue, member))))
      gone = gone + call('ZREM', queue.active, member)
    end
    left = left + count(queue, state) + (state == 'all' and count(queue, 'running') or 0)
  end
  return gone, left
end
