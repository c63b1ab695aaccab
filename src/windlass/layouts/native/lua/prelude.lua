-- Shared by every script of the native layout: the names of the keys, the queue's clock, operation
-- ids, and the few moves from which all verbs are made. It is put between a script's first line
-- (`#!lua …`) and its body, so each script is one constant text with one hash.
--
-- KEYS   all keys of one queue, in the order of keys.py. Declared always, so one slot is certain.
-- ARGV   [1] lane  [2] operation number on that lane  [3] the time the caller vouches for; then the script's own.
--        (The scripts that only read take none of these three.)
--
-- Every script that writes has three parts: read and check, decide, write. `measure` reads the size of
-- every key before the first write, so a key of a foreign type stops a script while nothing is written.

local STATE, READY, SCHEDULED, LEASES, HELD, HOLDERS, DATA, META, BLOCKED, PROGRESS, NOTES, DEAD, GRAVES, INBOX, IDLE =
  unpack(KEYS)

local call = redis.call
local PRIORITY_STEP = 2 ^ 49 -- a ready score is priority * PRIORITY_STEP + sequence: exact in a double
local MOST = 1000 -- items one call may move; keeps every script at a few milliseconds
local STEP_CAP = 1000 -- ms that the lease clock follows the server's clock on its word alone
local TOLERANCE = 2000 -- ms of disagreement that is not yet a jump of the server's clock
local BELIEVE_AFTER = 300000 -- ms after which a jumped clock is believed
local SILENCE = 5000 -- ms without any sign of life that make named holders worth a grace
local SOON = 1500 -- ms, a little more than the time after which a waiter looks by itself
local LANE_FORGOTTEN = 600000 -- ms after which the last answer to a silent lane may be dropped

---------------------------------------------------------------------------------------------------
-- Sizes

local SIZE_OF = {
  [READY] = 'ZCARD', [SCHEDULED] = 'ZCARD', [HELD] = 'ZCARD', [HOLDERS] = 'ZCARD', [DEAD] = 'ZCARD', [IDLE] = 'ZCARD',
  [LEASES] = 'HLEN', [DATA] = 'HLEN', [META] = 'HLEN', [BLOCKED] = 'HLEN', [PROGRESS] = 'HLEN', [NOTES] = 'HLEN',
  [GRAVES] = 'HLEN', [INBOX] = 'LLEN',
}
local size = {}

-- A key of a foreign type is an error that names the key.
local function read(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply) end
    error(redis.error_reply('WRONGTYPE ' .. key .. ' does not hold what Windlass keeps there'))
  end
  return reply
end

local function measure(...)
  for _, key in ipairs({ ... }) do
    size[key] = read(SIZE_OF[key], key)
  end
end

---------------------------------------------------------------------------------------------------
-- The clock. `now` (ms) is for leases: it never runs back and follows the server's clock by at most
-- STEP_CAP a step, unless the caller vouches for more: a client that heard `now` some time ago adds
-- what its own monotonic clock says has passed since. `due` (ms) is for run times: the server's clock,
-- less a jump that is not believed yet. A jump is what the clock moved and a vouching caller did not see pass.

local wall, wall_us, now, due
local state = {}
local lane_field

local function wall_clock()
  local time = call('TIME')
  wall = time[1] * 1000 + math.floor(time[2] / 1000)
  wall_us = time[1] * 1000000 + time[2]
end

local function advance_clock(vouched)
  wall_clock()
  if not (state.clock and state.wall) then
    now, due = math.max(wall, vouched), wall
    return
  end
  local moved = wall - state.wall
  now = math.max(state.clock + math.min(math.max(moved, 0), STEP_CAP), vouched)
  local passed = now - state.clock
  local unexplained = moved - passed
  local skew = state.skew
  if moved < -STEP_CAP then
    skew = skew + moved
  elseif unexplained > TOLERANCE then
    if vouched > 0 then
      skew = skew + unexplained
    elseif skew < 0 then
      skew = math.min(0, skew + unexplained)
    end
  elseif unexplained < -TOLERANCE and skew > 0 then
    skew = math.max(0, skew + unexplained)
  end
  if skew ~= state.skew then
    state.skew, state.skew_until, state.jumped = skew, now + BELIEVE_AFTER, true
  elseif skew ~= 0 and now > state.skew_until then
    state.skew, state.jumped = 0, true
  end
  if passed > SILENCE then
    state.grace, state.silent = now + SILENCE, true
  end
  due = wall - state.skew
end

local function read_state(extra)
  local f = read('HMGET', STATE, 'seq', 'fence', 'clock', 'wall', 'skew', 'skew_until', 'grace', 'paused', extra or 'lane')
  state.known = f[3] and true or false
  state.seq = tonumber(f[1]) or 0
  state.fence = tonumber(f[2]) or 0
  state.clock = tonumber(f[3])
  state.wall = tonumber(f[4])
  state.skew = tonumber(f[5]) or 0
  state.skew_until = tonumber(f[6]) or 0
  state.grace = tonumber(f[7]) or 0
  state.paused = f[8] == '1'
  return f[9]
end

---------------------------------------------------------------------------------------------------
-- Operation ids. A lane is one connection's worth of calls, one after the other; the state remembers
-- the last operation of each lane with its answer. The same number again is a repeat whose first
-- reply was lost: it gets the first answer and changes nothing. A lower one comes from a connection that
-- was given up long ago and is refused.

-- Reads the state, advances the clock. Returns the recorded answer when this operation was done before.
local function open()
  lane_field = 'lane:' .. ARGV[1]
  local record = read_state(lane_field)
  advance_clock(tonumber(ARGV[3]))
  if record then
    local number, _, answer = string.match(record, '^(%d+) (%d+) (.*)$')
    number = tonumber(number)
    if number == tonumber(ARGV[2]) then
      return answer
    elseif number > tonumber(ARGV[2]) then
      return redis.error_reply('STALEOP a later operation of this lane was applied before')
    end
  end
  return nil
end

-- Writes the state and the answer. Called once, after the other writes.
local function close(answer)
  call('HSET', STATE, 'seq', state.seq, 'fence', state.fence, 'clock', now, 'wall', wall,
    lane_field, ARGV[2] .. ' ' .. string.format('%.0f', now) .. ' ' .. answer)
  if state.jumped or state.silent then
    call('HSET', STATE, 'skew', state.skew, 'skew_until', state.skew_until, 'grace', state.grace)
  end
  if not state.known then
    call('HSET', STATE, 'format', 1, 'epoch', string.format('%.0f', wall_us))
  end
  if ARGV[2] == '1' then
    -- A lane's first call pays for lanes that ended without a goodbye: a bounded sample of them.
    local some = call('HRANDFIELD', STATE, 20, 'WITHVALUES')
    for i = 1, #some, 2 do
      local heard = some[i] ~= lane_field and string.sub(some[i], 1, 5) == 'lane:' and string.match(some[i + 1], '^%d+ (%d+)')
      if heard and now - tonumber(heard) > LANE_FORGOTTEN then
        call('HDEL', STATE, some[i])
      end
    end
  end
end

local function next_seq()
  state.seq = state.seq + 1
  return state.seq
end

---------------------------------------------------------------------------------------------------
-- Records. Packed by `struct`, big-endian; records.py reads and writes the same formats.

-- META: version, priority, max_failures, max_stalls, failures, stalls, min_backoff, max_backoff, sequence.
-- The priority and sequence are meant for scheduled jobs: a ready or leased one has both in its score.
local META_FORMAT = '>BBI4I4I4I4I8I8I8'
local META_SIZE = 42
local PLAIN = { priority = 5, max_failures = 10, max_stalls = 3, failures = 0, stalls = 0, min_backoff = 2000, max_backoff = 300000, seq = 0 }

-- A record of another length is not ours; what it says is not known, so the plain values stand.
local function read_meta(text)
  local m = {}
  if not text or #text ~= META_SIZE then
    for k, v in pairs(PLAIN) do m[k] = v end
    return m
  end
  local _
  _, m.priority, m.max_failures, m.max_stalls, m.failures, m.stalls, m.min_backoff, m.max_backoff, m.seq =
    struct.unpack(META_FORMAT, text)
  return m
end

local function write_meta(m)
  return struct.pack(META_FORMAT, 1, m.priority, m.max_failures, m.max_stalls, m.failures, m.stalls, m.min_backoff, m.max_backoff, m.seq)
end

-- What must be kept for a ready or leased job: nothing, when all but its priority is plain.
local function is_plain(m)
  return m.max_failures == 10 and m.max_stalls == 3 and m.failures == 0 and m.stalls == 0
    and m.min_backoff == 2000 and m.max_backoff == 300000
end

-- LEASES: cancelled?, fence, ready score to return to; then the holder's name.
local LEASE_FORMAT = '>BI8I8'
local LEASE_HEAD = 17

local function write_lease(cancelled, fence, score, holder)
  return struct.pack(LEASE_FORMAT, cancelled, fence, score) .. holder
end

local function read_lease(text)
  if #text < LEASE_HEAD then -- not ours: nobody owns it
    return { cancelled = false, fence = -1, score = 5 * PRIORITY_STEP, holder = '' }
  end
  local cancelled, fence, score = struct.unpack(LEASE_FORMAT, text)
  return { cancelled = cancelled == 1, fence = fence, score = score, holder = string.sub(text, LEASE_HEAD + 1) }
end

-- CHANGE: what an enqueue asks for: priority, kind of time (0 now, 1 absolute, 2 from now), ms, max_failures,
-- max_stalls, min_backoff, max_backoff, flags. An empty text is a plain job. BLOCKED: the same, then the data.
local CHANGE_FORMAT = '>BBI8I4I4I8I8I2'
local CHANGE_SIZE = 36
local UPDATE_DATA, UPDATE_MAX_FAILURES, UPDATE_MAX_STALLS, UPDATE_MIN_BACKOFF, UPDATE_MAX_BACKOFF = 1, 8, 16, 32, 64
local RESET_COUNTS, UPDATE_PRIORITY, KEEP, MUST_EXIST = 128, 256, 512, 1024
local RUN_AT = 2 -- two bits: 0 leave, 1 replace, 2 if later, 3 if earlier
local ALWAYS, IF_LATER, IF_EARLIER = 1, 2, 3
local PLAIN_FLAGS = 1 + 2 + 8 + 16 + 32 + 64 + 128 + 256

local function has(flags, flag)
  return math.floor(flags / flag) % 2 == 1
end

local function run_at_mode(flags)
  return math.floor(flags / RUN_AT) % 4
end

local function read_change(text)
  if #text ~= CHANGE_SIZE then
    return { priority = 5, run_at = 0, max_failures = 10, max_stalls = 3, min_backoff = 2000, max_backoff = 300000, flags = PLAIN_FLAGS }
  end
  local c, kind, ms = {}, nil, nil
  c.priority, kind, ms, c.max_failures, c.max_stalls, c.min_backoff, c.max_backoff, c.flags = struct.unpack(CHANGE_FORMAT, text)
  c.run_at = (kind == 0 and 0) or (kind == 1 and ms) or due + ms
  return c
end

local function write_blocked(c)
  return struct.pack(CHANGE_FORMAT, c.priority, c.run_at == 0 and 0 or 1, c.run_at, c.max_failures, c.max_stalls,
    c.min_backoff, c.max_backoff, c.flags) .. c.data
end

local function read_blocked(text)
  local c = read_change(string.sub(text, 1, CHANGE_SIZE))
  c.data = string.sub(text, CHANGE_SIZE + 1)
  return c
end

local function change_run_at(old, new, mode)
  if mode == ALWAYS then return new end
  if mode == IF_LATER then return math.max(old, new) end
  if mode == IF_EARLIER then return math.min(old, new) end
  return old
end

-- Applies a change to the counters and limits of a job, and to its run time (0 is now).
local function merge(m, run_at, c)
  if has(c.flags, UPDATE_MAX_FAILURES) then m.max_failures = c.max_failures end
  if has(c.flags, UPDATE_MAX_STALLS) then m.max_stalls = c.max_stalls end
  if has(c.flags, UPDATE_MIN_BACKOFF) then m.min_backoff = c.min_backoff end
  if has(c.flags, UPDATE_MAX_BACKOFF) then m.max_backoff = c.max_backoff end
  if has(c.flags, UPDATE_PRIORITY) then m.priority = c.priority end
  if has(c.flags, RESET_COUNTS) then m.failures, m.stalls = 0, 0 end
  return change_run_at(run_at, c.run_at, run_at_mode(c.flags))
end

---------------------------------------------------------------------------------------------------
-- Moves. None of them can fail once `measure` has seen the keys they touch.

local came = 0 -- jobs that became ready in this call, for `wake`
local soon = 0 -- run times set in this call that come before a waiter looks by itself

local function scheduled_member(seq, id)
  return struct.pack('>I8', seq) .. id
end

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

-- Takes what waits behind a finished job and makes it a job of its own.
local function release_blocked(id, text)
  local c = read_blocked(text)
  call('HDEL', BLOCKED, id)
  call('HSET', DATA, id, c.data)
  local m = { priority = c.priority, max_failures = c.max_failures, max_stalls = c.max_stalls, failures = 0, stalls = 0,
    min_backoff = c.min_backoff, max_backoff = c.max_backoff, seq = 0 }
  place(id, m, c.run_at)
end

-- Puts a job that was leased back among those that wait; what is blocked behind it is merged in.
local function put_back(id, m, run_at, score)
  local text = call('HGET', BLOCKED, id)
  if text then
    local c = read_blocked(text)
    call('HDEL', BLOCKED, id)
    if has(c.flags, UPDATE_DATA) then call('HSET', DATA, id, c.data) end
    run_at = merge(m, run_at, c)
  end
  place(id, m, run_at, score)
end

-- Removes a job and lets go what is blocked behind it.
local function remove(id)
  call('HDEL', DATA, id)
  call('HDEL', META, id)
  call('HDEL', NOTES, id)
  local text = call('HGET', BLOCKED, id)
  if text then release_blocked(id, text) end
end

local buried = 0 -- several deaths in one call keep their order

-- Moves a job to the bounded set of the dead. Reason: 1 failed, 2 stalled. GRAVES: reason, time, priority, the META record, message, data.
local function bury(id, m, reason, message, most)
  local data = call('HGET', DATA, id) or ''
  if most > 0 then
    buried = buried + 1
    call('ZADD', DEAD, wall_us + buried, id)
    call('HSET', GRAVES, id, struct.pack('>BI8', reason, wall) .. write_meta(m) .. struct.pack('>I4', #message) .. message .. data)
    local excess = call('ZCARD', DEAD) - most
    if excess > 0 then
      local oldest = call('ZRANGE', DEAD, 0, math.min(excess, MOST) - 1)
      call('HDEL', GRAVES, unpack(oldest))
      call('ZREM', DEAD, unpack(oldest))
    end
  end
  remove(id)
end

-- Ends a lease: the job is in no index until the caller puts it somewhere.
local function end_lease(id, lease)
  call('HDEL', LEASES, id)
  call('ZREM', HELD, lease.holder .. '\0' .. id)
  call('HDEL', PROGRESS, id)
end

local function held_by(holder, most)
  return call('ZRANGE', HELD, '[' .. holder .. '\0', '(' .. holder .. '\1', 'BYLEX', 'LIMIT', 0, most)
end

-- A holder that begins with a dot was made for one raw lease call and goes with its last job.
local function is_raw(holder)
  return string.sub(holder, 1, 1) == '.'
end

local function drop_holder_if_done(holder)
  if is_raw(holder) and #held_by(holder, 1) == 0 then
    call('ZREM', HOLDERS, holder)
  end
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

-- Wakes idle waiters, longest idle first; one that is gone does not count. A lost wake-up only delays. One is woken
-- for each run time that comes before the next poll, too: a waiter sleeps until the first one that it knew of.
local function wake(count)
  if size[IDLE] == 0 then return end
  count = count + soon
  while count > 0 do
    local waiter = call('ZPOPMIN', IDLE)[1]
    if not waiter then return end
    if call('PUBLISH', 'windlass:wake:' .. waiter, '') > 0 then
      count = count - 1
    end
  end
end

---------------------------------------------------------------------------------------------------
-- Rows, for the scripts that only read:
-- { state, id, data, META record, ready score, run time, LEASES record, progress, last failure's message }

local function row_of(what, id, score, run_at, lease)
  return { what, id, read('HGET', DATA, id), read('HGET', META, id), score, run_at, lease, read('HGET', PROGRESS, id), read('HGET', NOTES, id) }
end

local function leased_row(id, lease)
  return row_of('leased', id, false, false, lease)
end

local function ready_row(id, score)
  return row_of('ready', id, score, false, false)
end

local function scheduled_row(id, run_at)
  return row_of(tonumber(run_at) > due and 'scheduled' or 'ready', id, false, run_at, false)
end

local function dead_row(id)
  return { 'dead', id, read('HGET', GRAVES, id) }
end
