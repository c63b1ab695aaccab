-- Ending leases and jobs. None of these functions can fail once the script has read the sizes of the keys they write.

-- Makes a job of the change that was blocked behind a finished job of the same id.
local function start_blocked_job(id, text)
  local c = read_blocked(text)
  call('HDEL', BLOCKED, id)
  call('HSET', DATA, id, c.data)
  drop_empty_extras(c)
  c.failures, c.stalls, c.seq, c.marks = 0, 0, 0, has(c.flags, LIMITS_GIVEN) and LIMITED or 0
  place(id, c, c.run_at)
end

-- Places a job whose lease has ended in `ready` or `scheduled` again, merged with the change that is blocked behind it. A
-- change that has expired is dropped: it must not take the job with it.
local function place_again(id, m, run_at, score)
  end_expiry_if_started(m) -- before a change resets the counts
  local text = call('HGET', BLOCKED, id)
  if text then
    local c = read_blocked(text)
    call('HDEL', BLOCKED, id)
    if is_past_expiry(c) then
      leave_mark(id, BLOCKED_EXPIRED)
    else
      if has(c.flags, UPDATE_DATA) then call('HSET', DATA, id, c.data) end
      run_at = merge(m, run_at, c)
      set_expiry(m, run_at, run_at > due)
      drop_empty_extras(m)
    end
  end
  place(id, m, run_at, score)
end

-- Removes a job. A change that was blocked behind it becomes a job; returns whether there was one.
local function remove(id)
  call('HDEL', DATA, id)
  call('HDEL', META, id)
  call('HDEL', LAST_ERRORS, id)
  local text = call('HGET', BLOCKED, id)
  if text then start_blocked_job(id, text) end
  return text and true
end

local function remove_cancelled(id)
  publish_event(id, 'cancelled')
  if not remove(id) then leave_mark(id, CANCELLED) end
end

local deaths = 0 -- dead and broken jobs of this call: added to the time, so that they keep their order

local function add_dead_record(key, id, dead_record)
  deaths = deaths + 1
  call('ZREM', key == DEAD and BROKEN or DEAD, id)
  call('ZADD', key, wall_us + deaths, id)
  call('HSET', DEAD_RECORDS, id, dead_record)
end

-- Adds a job to `dead`. Drops and counts the oldest ones if there are more than `max_dead`. The script that uses
-- this part declares `dropped`.
local function add_dead(id, dead_record, max_dead)
  local excess = 1
  if max_dead > 0 then
    add_dead_record(DEAD, id, dead_record)
    excess = call('ZCARD', DEAD) - max_dead
    if excess <= 0 then return end
    local oldest = call('ZRANGE', DEAD, 0, math.min(excess, MAX_ITEMS) - 1)
    excess = #oldest
    call('HDEL', DEAD_RECORDS, unpack(oldest))
    call('ZREM', DEAD, unpack(oldest))
  end
  dropped = dropped + excess
  local before = tonumber(call('HGET', STATE, 'dropped') or 0) or 0
  call('HSET', STATE, 'dropped', string.format('%.0f', before + excess))
end

-- Ends a job that failed for good. It becomes a failure job if the queue has a failure handler, else it goes to `dead`.
-- An undecodable job goes to `broken` and is never dropped, because this attempt did not run. The caller checks `max_broken`.
local function end_for_good(id, m, reason, message, limit)
  remove_expiry(m)
  -- Reason, time, META record, length of the message, message, data.
  local dead_record = struct.pack(DEAD_RECORD_FORMAT, reason, wall) .. write_meta(m) .. struct.pack('>I4', #message) .. message
    .. (call('HGET', DATA, id) or '')
  local event = reason == UNDECODABLE and 'broken' or 'dead'
  if reason == UNDECODABLE then
    add_dead_record(BROKEN, id, dead_record)
  elseif marked(m, FAILURE_JOB) or not state.failure_handler then
    add_dead(id, dead_record, limit)
  else
    local f = read_meta(state.failure_handler)
    local name
    repeat name = 'failure-' .. string.format('%.0f', next_seq()) until call('HEXISTS', DATA, name) == 0
    f.priority, f.marks = m.priority, FAILURE_JOB + LIMITED
    -- The data of a failure job: length of the id, id, then the dead record.
    call('HSET', DATA, name, struct.pack('>I2', #id) .. id .. dead_record)
    place(name, f, 0)
    -- A caller that waits for this job will not find it in `dead`, and a lost lease keeps no result, so the event says why.
    local why = reason == CRASHED and 'crashed' or reason == STALLED and 'stalled'
    if why then event = 'dead ' .. why .. ' ' .. message end
  end
  publish_event(id, event)
  -- Also if there is a dead record, which may be dropped or purged; and an earlier job with this id may have left a result.
  local goes_on = remove(id)
  leave_mark(id, goes_on and GOES_ON or reason == UNDECODABLE and BROKE or DIED)
end

-- Ends a failure job that no handler takes: the job that failed goes to `dead`.
local function keep_unhandled_failure(id, limit)
  local text = call('HGET', DATA, id) or ''
  if #text > 2 then
    local length = struct.unpack('>I2', text)
    add_dead(string.sub(text, 3, 2 + length), string.sub(text, 3 + length), limit)
  end
  remove(id)
end

-- Ends a lease. The job is in no index until the caller places or removes it.
local function end_lease(id, lease)
  call('HDEL', LEASES, id)
  call('ZREM', HELD, lease.holder .. '\0' .. id)
  call('HDEL', PROGRESS, id)
end
