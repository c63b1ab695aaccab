-- Ending leases, and what becomes of a job then. None of these moves can fail once the sizes were read.

-- Takes what waits behind a finished job and makes it a job of its own.
local function release_blocked(id, text)
  local c = read_blocked(text)
  call('HDEL', BLOCKED, id)
  call('HSET', DATA, id, c.data)
  local m = { marks = has(c.flags, LIMITS_GIVEN) and LIMITED or 0, priority = c.priority, max_failures = c.max_failures, max_stalls = c.max_stalls, failures = 0, stalls = 0,
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
  call('HDEL', LAST_ERRORS, id)
  local text = call('HGET', BLOCKED, id)
  if text then release_blocked(id, text) end
end

-- DEAD_RECORDS: reason, time, the META record, message, data. FAILURE, the data of a job for a failure handler: the id, then the same.
local FAILED, STALLED, UNDECODABLE, CRASHED = 1, 2, 3, 4
local buried = 0 -- several deaths in one call keep their order

local function add_dead_record(key, id, dead_record)
  buried = buried + 1
  call('ZREM', key == DEAD and BROKEN or DEAD, id)
  call('ZADD', key, wall_us + buried, id)
  call('HSET', DEAD_RECORDS, id, dead_record)
end

-- Keeps a dead job. The set is bounded: the oldest are dropped, and counted, when there are more than `max_dead`.
-- The script that uses this part declares `dropped`.
local function keep_dead(id, dead_record, max_dead)
  local excess = 1
  if max_dead > 0 then
    add_dead_record(DEAD, id, dead_record)
    excess = call('ZCARD', DEAD) - max_dead
    if excess <= 0 then return end
    local oldest = call('ZRANGE', DEAD, 0, math.min(excess, MOST) - 1)
    excess = #oldest
    call('HDEL', DEAD_RECORDS, unpack(oldest))
    call('ZREM', DEAD, unpack(oldest))
  end
  dropped = dropped + excess
  local before = tonumber(call('HGET', STATE, 'dropped') or 0) or 0
  call('HSET', STATE, 'dropped', string.format('%.0f', before + excess))
end

-- The end of a job that failed for good: a job for the failure handler if one is known on this queue, else it is kept among
-- the dead, which are bounded, or among the broken, which are not: a broken job was never run, so it is never dropped.
local function bury(id, m, reason, message, most)
  local dead_record = struct.pack('>BI8', reason, wall) .. write_meta(m) .. struct.pack('>I4', #message) .. message
    .. (call('HGET', DATA, id) or '')
  local told = reason == UNDECODABLE and 'broken' or 'dead'
  if reason == UNDECODABLE then
    add_dead_record(BROKEN, id, dead_record)
  elseif marked(m, FAILURE_JOB) or not state.failure_handler then
    keep_dead(id, dead_record, most)
  else
    local f = read_meta(state.failure_handler)
    local name
    repeat name = 'failure-' .. string.format('%.0f', next_seq()) until call('HEXISTS', DATA, name) == 0
    f.priority, f.marks = m.priority, FAILURE_JOB + LIMITED
    call('HSET', DATA, name, struct.pack('>I2', #id) .. id .. dead_record)
    place(name, f, 0)
    -- Who waits for it will not find it among the dead, and a crash keeps no result by itself.
    local why = reason == CRASHED and 'crashed' or reason == STALLED and 'stalled'
    if why then told = 'dead ' .. why .. ' ' .. message end
  end
  tell(id, told)
  remove(id)
end

-- A failure that no handler here wants: the job lands among the dead after all.
local function bury_unhandled(id, most)
  local text = call('HGET', DATA, id) or ''
  if #text > 2 then
    local length = struct.unpack('>I2', text)
    keep_dead(string.sub(text, 3, 2 + length), string.sub(text, 3 + length), most)
  end
  remove(id)
end

-- Ends a lease: the job is in no index until the caller puts it somewhere.
local function end_lease(id, lease)
  call('HDEL', LEASES, id)
  call('ZREM', HELD, lease.holder .. '\0' .. id)
  call('HDEL', PROGRESS, id)
end
