-- The functions of Queasy's document, each as it lists them, for a peer that has never heard of Windlass.
--
-- KEYS  [1] {queue}, only to find the slot    ARGV  [1] the function  [2] now in ms
--       [3] "1": it compares flags with booleans and stores none, as the first published Lua does  [4…] its own

local call = redis.call
local now, boolean = tonumber(ARGV[2]), ARGV[3] == '1'
local HEARTBEAT = 10000
local peer = {}

local function keys(queue)
  return { waiting = queue .. ':waiting', active = queue .. ':active' }
end

local function table_of(flat)
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end

local function add_to_waiting(q, id, score, mode)
  local flag = ({ ['false'] = 'NX', ifLater = score >= 0 and 'GT' or 'LT', ifEarlier = score >= 0 and 'LT' or 'GT' })[mode]
  if flag then call('ZADD', q.waiting, flag, score, id) else call('ZADD', q.waiting, score, id) end
end

local function upsert_job(q, job)
  local hash = q.waiting .. '_job:' .. job.id
  for field, value in pairs(job) do
    local is_count = field == 'failureCount' or field == 'stallCount'
    if is_count and not boolean then value = nil end -- no options: see resetCounts
    local flag = 'update' .. string.upper(string.sub(field, 1, 1)) .. string.sub(field, 2)
    if boolean and string.find(field, '^update') then value = nil end
    if value and (job[flag] == 'false' or (boolean and job[flag] ~= nil)) then -- a stored flag is a text, and no boolean
      call('HSETNX', hash, field, value)
    elseif value then
      call('HSET', hash, field, value)
    end
  end
  for _, field in ipairs(boolean and {} or { 'failureCount', 'stallCount' }) do
    call(job.resetCounts == 'false' and 'HSETNX' or 'HSET', hash, field, 0)
  end
  local run_at = tonumber(job.runAt)
  local blocked = call('EXISTS', q.active .. '_job:' .. job.id) == 1
  add_to_waiting(q, job.id, blocked and -run_at or run_at, job.updateRunAt)
end

local function clear_active(q, id, worker)
  call('ZREM', q.active, id .. ':' .. worker)
  call('DEL', q.active .. '_job:' .. id)
  local score = call('ZSCORE', q.waiting, id)
  if score then
    add_to_waiting(q, id, math.abs(score), call('HGET', q.waiting .. '_job:' .. id, 'updateRunAt'))
  end
end

local function do_retry(q, id, run_at)
  local score = call('ZSCORE', q.waiting, id)
  local blocked = score and table_of(call('HGETALL', q.waiting .. '_job:' .. id))
  call('RENAME', q.active .. '_job:' .. id, q.waiting .. '_job:' .. id)
  call('ZADD', q.waiting, run_at, id)
  if blocked then
    blocked.runAt = math.abs(score)
    upsert_job(q, blocked)
  end
end

local function on_failure(q, id, worker, text)
  local fail = keys(KEYS[1] .. '-fail')
  if call('EXISTS', fail.waiting) == 1 then
    local job = table_of(call('HGETALL', q.active .. '_job:' .. id))
    job.error, job.runAt, job.lockedBy = text, 0, nil
    upsert_job(fail, job)
  end
  clear_active(q, id, worker)
end

function peer.notify(q, flat)
  upsert_job(q, table_of(cjson.decode(flat)))
end

function peer.cancel(q, id)
  return call('ZREM', q.waiting, id) + call('DEL', q.waiting .. '_job:' .. id)
end

function peer.dequeue(q, worker, count)
  local taken = {}
  for _, id in ipairs(call('ZRANGE', q.waiting, 0, now, 'BYSCORE', 'LIMIT', 0, count)) do
    call('ZREM', q.waiting, id)
    call('RENAME', q.waiting .. '_job:' .. id, q.active .. '_job:' .. id)
    call('HSET', q.active .. '_job:' .. id, 'lockedBy', worker)
    call('ZADD', q.active, now + HEARTBEAT, id .. ':' .. worker)
    taken[#taken + 1] = call('HGETALL', q.active .. '_job:' .. id)
  end
  return taken
end

function peer.heartbeat(q, id, worker)
  call('ZADD', q.active, 'XX', now + HEARTBEAT, id .. ':' .. worker)
  return call('ZSCORE', q.active, id .. ':' .. worker) and 1 or 0
end

function peer.success(q, id, worker)
  clear_active(q, id, worker)
end

function peer.retry(q, id, worker, run_at, text)
  local hash = q.active .. '_job:' .. id
  call('ZREM', q.active, id .. ':' .. worker)
  if call('HGET', hash, 'failureCount') == call('HGET', hash, 'maxFailures') then return on_failure(q, id, worker, text) end
  call('HINCRBY', hash, 'failureCount', 1)
  do_retry(q, id, run_at)
end

function peer.clear_stall(q)
  local stalled = call('ZRANGE', q.active, '-inf', now, 'BYSCORE')
  for _, member in ipairs(stalled) do
    local id, worker = string.match(member, '^(.*):([^:]*)$')
    local hash = q.active .. '_job:' .. id
    call('ZREM', q.active, member)
    if call('HGET', hash, 'stallCount') == call('HGET', hash, 'maxStalls') then
      on_failure(q, id, worker, '{"name":"StallError"}')
    else
      call('HINCRBY', hash, 'stallCount', 1)
      do_retry(q, id, now)
    end
  end
  return #stalled
end

return peer[ARGV[1]](keys(KEYS[1]), unpack(ARGV, 4))
