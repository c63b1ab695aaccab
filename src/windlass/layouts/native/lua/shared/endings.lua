-- Ending leases, and what becomes of a job then. None of these moves can fail once the sizes were read.

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
