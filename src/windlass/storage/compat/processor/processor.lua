-- Processor Job Queue's own part; layout.py has its key map. The token of a run is the job's uuid.
--
-- In STATE it notes: `busy:<worker>`, how many jobs a worker processes; `assigned:<worker>`, the job that was dispatched
-- to it and that it has not accepted yet; `heard:<worker>`, which service heard of it last, and its last sign of life then;
-- `looked`, how far those that wait were looked at. SETTING is how many finished jobs are kept.

local QUEUED, DISPATCHED, PROCESSING, PROGRESS, FINISHED = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local LAST_SEEN, IDLE, BUSY = KEYS[9], KEYS[10], KEYS[11]
local LISTS = { KEYS[12], KEYS[13], KEYS[14], KEYS[15], KEYS[16], QUEUED, KEYS[17], KEYS[18], KEYS[19], KEYS[20] }
local PLAIN = 5
local TICK, LOST = 3000, 9000 -- ms
local MOST = 1000
local FEW = 5 -- uuids that are looked for one by one; to find more, a list is read as a whole
local LONGEST_READ = 100000 -- entries of a list
expect('list', unpack(LISTS))
expect('zset', DISPATCHED, PROCESSING, PROGRESS, FINISHED, LAST_SEEN)
expect('set', IDLE, BUSY)
layout.sweep_every = 1000

-- Scores are seconds. A double has room for microseconds, by which jobs of one moment keep their order.
local function seconds(us)
  return string.format('%.6f', us / 1000000)
end

-- A time in ms as its peers write it. The years are counted from March on, so that a leap day is the last of its year.
local function iso(ms)
  local day = math.floor(ms / DAY) + 719468 -- since the first of March in the year 0
  local era = math.floor(day / 146097)
  day = day - era * 146097
  local year = math.floor((day - math.floor(day / 1460) + math.floor(day / 36524) - math.floor(day / 146096)) / 365)
  day = day - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * day + 2) / 153)
  day = day - math.floor((153 * month + 2) / 5) + 1
  month = month < 10 and month + 3 or month - 9
  year = year + era * 400 + (month <= 2 and 1 or 0)
  local rest = ms % DAY
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%03dZ', year, month, day, math.floor(rest / 3600000),
    math.floor(rest / 60000) % 60, math.floor(rest / 1000) % 60, rest % 1000)
end

-- A field of a job; none where the key is no hash, which is not ours to mend.
local function field(id, name)
  local found = redis.pcall('HGET', id, name)
  return type(found) == 'string' and found or nil
end

local function priority_of(id)
  local given = field(id, 'priority')
  return given and string.find(given, '^%d$') and tonumber(given) or PLAIN
end

local function meta_of(id)
  local priority = priority_of(id)
  if priority == PLAIN then return '' end
  return struct.pack('>BBBI4I4I4I4I8I8I8', 2, 0, priority, 10, 3, 0, 0, 2000, 300000, 0)
end

-- All entries about workers are renewed every few seconds, so what is left of them may go by itself.
local function keep_workers()
  for _, key in ipairs({ LAST_SEEN, IDLE, BUSY }) do call('PEXPIRE', key, DAY) end
end

-- Peers call a worker lost, and its jobs with it, LOST ms after the last sign. A lease of another length is written as if
-- the sign had come earlier or later, so that it ends for all at the same time.
local moved = 0
local function sign(ends)
  return (ends - LOST) * 1000 + now_us % 1000
end

-- -- jobs ------------------------------------------------------------------------------------------

function layout.check(id)
  expect('hash', id)
  if call('EXISTS', id) == 1 and call('HEXISTS', id, 'json') == 0 then
    error(redis.error_reply('WRONGTYPE ' .. id .. ' is no job'))
  end
end

function layout.add(id, data, change)
  if field(id, 'json') then
    if not field(id, 'finished_at') then return 'k' end
    call('DEL', id)
    call('ZREM', FINISHED, id)
  end
  local priority = change ~= '' and struct.unpack('>B', change) or PLAIN
  call('HSET', id, 'json', data)
  if priority ~= PLAIN then call('HSET', id, 'priority', priority) end
  call('LPUSH', LISTS[priority + 1], id)
  came = came + 1
  return 'a'
end

-- A peer may add a job again that is finished: then it is not any more, and must not go as one.
local function call_back(id)
  call('ZREM', FINISHED, id)
  if field(id, 'finished_at') and call('HEXISTS', id, 'json') == 1 then
    call('HDEL', id, 'finished_at')
    call('PERSIST', id)
  end
end

-- The next job, off its list. A uuid without a job is dropped, and so is a second entry of one that somebody has.
local first = 1
local function next_job()
  for _ = 1, MOST do
    local id
    while not id do
      if first > #LISTS then return nil end
      id = call('RPOP', LISTS[first])
      if not id then first = first + 1 end
    end
    if field(id, 'json') and not call('ZSCORE', PROCESSING, id) and not call('ZSCORE', DISPATCHED, id) then
      call_back(id)
      return id
    end
  end
  return nil
end

local function start(id, worker, at, started_at)
  call('ZREM', DISPATCHED, id)
  call('ZADD', PROCESSING, seconds(at), id)
  call('ZADD', PROGRESS, 0, id)
  call('HSET', id, 'started_at', started_at, 'worker_uuid', worker)
  if call('HGET', STATE, 'assigned:' .. worker) == id then call('HDEL', STATE, 'assigned:' .. worker) end
  call('HINCRBY', STATE, 'busy:' .. worker, 1)
  call('SREM', IDLE, worker)
  call('SADD', BUSY, worker)
  keep_workers()
end

-- Nobody has the job any more; whether a worker had accepted it.
local function leave(id)
  local worker = field(id, 'worker_uuid') or ''
  local processed = call('ZREM', PROCESSING, id) == 1
  call('ZREM', PROGRESS, id)
  call('ZREM', DISPATCHED, id)
  if call('HGET', STATE, 'assigned:' .. worker) == id then call('HDEL', STATE, 'assigned:' .. worker) end
  if processed and call('HINCRBY', STATE, 'busy:' .. worker, -1) <= 0 then
    call('HDEL', STATE, 'busy:' .. worker)
    call('SREM', BUSY, worker)
  end
end

local function put_back(id, side)
  leave(id)
  if not field(id, 'json') then return end
  call('HDEL', id, 'dispatched_at', 'started_at', 'worker_uuid')
  call(side, LISTS[priority_of(id) + 1], id)
  came = came + 1
end

-- Which of these wait in the list where peers put jobs. To look for one is to walk through all of it.
local function waiting_among(ids)
  local found = {}
  if #ids <= FEW then
    for _, id in ipairs(ids) do found[id] = call('LPOS', QUEUED, id) end
  else
    for _, id in ipairs(call('LRANGE', QUEUED, 0, -1)) do found[id] = true end
  end
  return found
end

-- Its peers keep what is finished for ever; here it is the last of them, for a day. They go some at a time, and none while
-- so many wait that it takes long to see whether one was added again.
local function drop_finished(most)
  local beyond = call('ZCARD', FINISHED) - most
  if beyond <= math.min(most / 10, MOST) then beyond = 0 end
  beyond = math.min(MOST, math.max(beyond, call('ZCOUNT', FINISHED, '-inf', seconds(now_us - DAY * 1000))))
  if beyond == 0 or call('LLEN', QUEUED) > LONGEST_READ then return end
  local ids = call('ZRANGE', FINISHED, 0, beyond - 1)
  local waits = waiting_among(ids)
  for _, id in ipairs(ids) do
    call('ZREM', FINISHED, id)
    if waits[id] or call('ZSCORE', PROCESSING, id) or call('ZSCORE', DISPATCHED, id) then
      call_back(id)
    elseif field(id, 'finished_at') and field(id, 'json') then
      call('DEL', id)
    end
  end
end

local function finish(id, at, finished_at, json)
  leave(id)
  local most = tonumber(SETTING)
  if most == 0 then
    call('DEL', id)
    return
  end
  call('HSET', id, 'finished_at', finished_at)
  if json then call('HSET', id, 'json', json) end
  call('PEXPIRE', id, DAY)
  call('ZADD', FINISHED, seconds(at), id)
  call('PEXPIRE', FINISHED, DAY)
  drop_finished(most)
end

-- Some of those that wait are looked at, others each time, from where they are added on: what peers added again stays.
local function call_some_back()
  local from = tonumber(call('HGET', STATE, 'looked') or 0)
  local ids = call('LRANGE', QUEUED, from, from + MOST - 1)
  for _, id in ipairs(ids) do call_back(id) end
  if #ids == MOST then
    call('HSET', STATE, 'looked', from + MOST)
  elseif from > 0 then
    call('HDEL', STATE, 'looked')
  end
end

-- -- what the verbs ask for ------------------------------------------------------------------------

function layout.take(holder, ends)
  local id = next_job()
  if not id then return nil end
  moved = moved + 1
  local text = iso(now)
  call('HSET', id, 'dispatched_at', text)
  start(id, holder, sign(ends) + moved, text)
  return id
end

function layout.describe(run)
  return run.token, field(run.token, 'json') or '', meta_of(run.token)
end

function layout.holds(run)
  return call('ZSCORE', PROCESSING, run.token) and field(run.token, 'worker_uuid') == run.holder
    and field(run.token, 'json')
end

-- The jobs of a holder come here the latest first.
function layout.extend(run, ends, never_less)
  moved = moved + 1
  local score = seconds(sign(ends) - moved)
  if never_less then
    call('ZADD', PROCESSING, 'XX', 'GT', score, run.token)
  else
    call('ZADD', PROCESSING, 'XX', score, run.token)
  end
end

function layout.beat(holder, ends)
  call('ZADD', LAST_SEEN, 'GT', seconds(sign(ends)), holder)
  keep_workers()
  return true
end

function layout.retire(holder)
  call('ZREM', LAST_SEEN, holder)
  call('SREM', IDLE, holder)
  call('SREM', BUSY, holder)
  call('HDEL', STATE, 'busy:' .. holder, 'assigned:' .. holder, 'heard:' .. holder)
end

local function tell_progress(id, value)
  call('ZADD', PROGRESS, 'XX', value, id)
  if call('HEXISTS', RUNS, pointer(id)) == 1 then call('HSET', RUNS, note(id), 1) end
end

function layout.progress(run, value)
  tell_progress(run.token, value)
  call('ZADD', PROCESSING, 'XX', 'GT', seconds(now_us), run.token)
  call('ZADD', LAST_SEEN, 'GT', seconds(now_us), run.holder)
end

function layout.complete(run)
  finish(run.token, now_us, iso(now))
end

function layout.release(run)
  put_back(run.token, 'RPUSH')
end

function layout.retry(run)
  put_back(run.token, 'LPUSH')
end

layout.stall = layout.release
layout.crash, layout.unknown, layout.broken = layout.retry, layout.retry, layout.retry
layout.fail = layout.complete

local function forget_run(id)
  local fence = call('HGET', RUNS, pointer(id))
  if fence then forget({ fence = fence, token = id }) end
end

-- What was dispatched and not accepted, workers that were not seen, and what they, or peers of another make, were processing.
-- A worker that says it is idle has dropped what it was processing. The latest first: the first is in front in the end.
function layout.sweep()
  call_some_back()
  local back, limit = 0, seconds((now - LOST) * 1000)
  for _, id in ipairs(call('ZRANGE', DISPATCHED, limit, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, MOST)) do
    put_back(id, 'RPUSH')
    back = back + 1
  end
  for _, worker in ipairs(call('ZRANGE', LAST_SEEN, '-inf', limit, 'BYSCORE', 'LIMIT', 0, MOST)) do
    if not is_known(worker) then dismiss(worker) end
  end
  for _, id in ipairs(call('ZRANGE', PROCESSING, limit, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, MOST)) do
    local worker = field(id, 'worker_uuid') or ''
    if not call('ZSCORE', LAST_SEEN, worker) or call('SISMEMBER', IDLE, worker) == 1 then
      forget_run(id)
      put_back(id, 'RPUSH')
      back = back + 1
    end
  end
  return back
end

function layout.cancel(id)
  for _, list in ipairs({ LISTS[priority_of(id) + 1], QUEUED }) do -- peers put all back to one list
    if call('LREM', list, 0, id) > 0 then return field(id, 'json') ~= nil and call('DEL', id) == 1 end
  end
  return false
end

function layout.counts()
  local ready = 0
  for _, list in ipairs(LISTS) do ready = ready + call('LLEN', list) end
  return { ready, 0, 0, call('ZCARD', PROCESSING) + call('ZCARD', DISPATCHED), 0, 0 }
end

-- Peers see a progress of 0 from the first on. Of a run of ours it is noted whether it was told.
local function describe_leased(id)
  local fence = call('HGET', RUNS, pointer(id)) or nil
  local told = not fence or call('HEXISTS', RUNS, note(id)) == 1
  return row('leased', id, field(id, 'json') or '', {
    meta = meta_of(id),
    holder = field(id, 'worker_uuid'),
    fence = fence,
    progress = told and call('ZSCORE', PROGRESS, id) or nil,
  })
end

function layout.find(id)
  local data = field(id, 'json')
  if not data then return nil end
  if call('ZSCORE', PROCESSING, id) or call('ZSCORE', DISPATCHED, id) then return describe_leased(id) end
  for _, list in ipairs({ LISTS[priority_of(id) + 1], QUEUED }) do -- the hash may be a job of another queue
    if call('LPOS', list, id) then return row('ready', id, data, { meta = meta_of(id) }) end
  end
  return nil
end

-- A key that is named there and is no job is somebody's.
local function drop_all(ids)
  local gone = 0
  for _, id in ipairs(ids) do
    leave(id)
    if field(id, 'json') then gone = gone + call('DEL', id) end
  end
  return gone
end

function layout.purge(state)
  local gone, left, room = 0, 0, MOST
  if state == 'all' or state == 'ready' then
    for _, list in ipairs(LISTS) do
      local ids = room > 0 and call('RPOP', list, room) or {}
      room = room - #ids
      gone = gone + drop_all(ids)
      left = left + call('LLEN', list)
    end
  end
  if state == 'all' then
    for _, key in ipairs({ PROCESSING, DISPATCHED }) do
      gone = gone + drop_all(call('ZRANGE', key, 0, MOST - 1))
      left = left + call('ZCARD', key)
    end
    if left == 0 then
      drop_all(call('ZRANGE', FINISHED, 0, MOST - 1))
      call('DEL', FINISHED) -- more than that goes by itself, within a day
    end
  end
  return gone, left
end

-- -- what the service asks for: workers that speak through messages ----------------------------------

-- A worker was heard of by a service, at that time in ms. Whether it still counts as alive.
local function hear(worker, at, service)
  local ends = at + LOST
  if ends <= now then return false end
  call('ZADD', HOLDERS, 'GT', whole(ends), worker)
  layout.beat(worker, ends)
  call('HSET', STATE, 'heard:' .. worker, service .. ' ' .. call('ZSCORE', LAST_SEEN, worker))
  return true
end

-- "processing" or "dispatched" when the job is this worker's. One that a peer dispatched has no mark of whose it is: such a
-- job is whoever's accepts it.
local function standing(id, worker)
  local whose = field(id, 'worker_uuid')
  if not field(id, 'json') then return nil end
  if call('ZSCORE', PROCESSING, id) then return whose == worker and 'processing' or nil end
  if not call('ZSCORE', DISPATCHED, id) then return nil end
  local another = whose and whose ~= worker and call('HGET', STATE, 'assigned:' .. whose) == id
  return not another and 'dispatched' or nil
end

local function accept(id, worker, at, started_at)
  start(id, worker, at * 1000, started_at)
  local fence = whole(math.max(tonumber(call('HGET', STATE, 'fence') or 0), now_us) + 1)
  call('HSET', STATE, 'fence', fence)
  remember({ fence = fence, holder = worker, token = id })
end
