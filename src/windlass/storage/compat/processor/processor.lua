-- Processor Job Queue's own part; layout.py has its key map. The token of a run is the job's uuid.
--
-- Fields of STATE: `busy:<worker>`, number of jobs that a worker processes; `assigned:<worker>`, the job that was dispatched
-- to it and that it has not accepted yet; `heard:<worker>`, the service that heard of it last and the sign of life then;
-- `looked`, position up to which waiting jobs were checked. SETTING is the number of finished jobs to keep.

local QUEUED, DISPATCHED, PROCESSING, PROGRESS, FINISHED = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local LAST_SEEN, IDLE, BUSY = KEYS[9], KEYS[10], KEYS[11]
local LISTS = { KEYS[12], KEYS[13], KEYS[14], KEYS[15], KEYS[16], QUEUED, KEYS[17], KEYS[18], KEYS[19], KEYS[20] }
local PLAIN = 5
local TICK_MS, LOST_AFTER_MS = 3000, 9000 -- as its document says
local MAX_SINGLE_LOOKUPS = 5 -- more uuids than this are searched in one read of the list
local MAX_SCANNED = 100000 -- a longer list is not searched: that would block the server for too long
expect('list', unpack(LISTS))
expect('zset', DISPATCHED, PROCESSING, PROGRESS, FINISHED, LAST_SEEN)
expect('set', IDLE, BUSY)
layout.sweep_every = 1000

-- A score in seconds. The microseconds keep jobs of one moment in order.
local function seconds(us)
  return string.format('%.6f', us / 1000000)
end

-- A time in ms as its peers write it. Counts years from March, so that a leap day is the last day of its year.
local function iso(ms)
  local day = math.floor(ms / DAY_MS) + 719468 -- since the first of March in the year 0
  local era = math.floor(day / 146097)
  day = day - era * 146097
  local year = math.floor((day - math.floor(day / 1460) + math.floor(day / 36524) - math.floor(day / 146096)) / 365)
  day = day - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * day + 2) / 153)
  day = day - math.floor((153 * month + 2) / 5) + 1
  month = month < 10 and month + 3 or month - 9
  year = year + era * 400 + (month <= 2 and 1 or 0)
  local rest = ms % DAY_MS
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%03dZ', year, month, day, math.floor(rest / 3600000),
    math.floor(rest / 60000) % 60, math.floor(rest / 1000) % 60, rest % 1000)
end

-- A field of a job; nil if the key is no hash, because then it belongs to another program.
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
  return limits_record(0, priority)
end

-- Lets the keys about workers expire; live workers renew them every few seconds.
local function keep_workers()
  for _, key in ipairs({ LAST_SEEN, IDLE, BUSY }) do call('PEXPIRE', key, DAY_MS) end
end

-- Peers declare a worker and its jobs lost LOST_AFTER_MS after its last sign of life. For a lease of another length, the sign
-- of life is written earlier or later, so that the lease ends at the same time for all.
local moves = 0
local function sign(ends)
  return (ends - LOST_AFTER_MS) * 1000 + now_us % 1000
end

-- -- jobs ------------------------------------------------------------------------------------------

function layout.check(id)
  expect('hash', id)
  if call('EXISTS', id) == 1 and call('HEXISTS', id, 'json') == 0 then
    error(redis.error_reply('WRONGTYPE ' .. id .. ' has no field json: it is not a job of this layout'))
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
  made_ready = made_ready + 1
  return 'a'
end

-- Clears the finished state of a job that a peer has added again, so that it does not expire.
local function reopen(id)
  call('ZREM', FINISHED, id)
  if field(id, 'finished_at') and call('HEXISTS', id, 'json') == 1 then
    call('HDEL', id, 'finished_at')
    call('PERSIST', id)
  end
end

-- Takes the next job off its list. Drops a uuid without a job, and a second entry of a job that is taken already.
local first = 1
local function next_job()
  for _ = 1, MAX_ITEMS do
    local id
    while not id do
      if first > #LISTS then return nil end
      id = call('RPOP', LISTS[first])
      if not id then first = first + 1 end
    end
    if field(id, 'json') and not call('ZSCORE', PROCESSING, id) and not call('ZSCORE', DISPATCHED, id) then
      reopen(id)
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

-- Removes a job from its worker.
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

-- A time as its peers write it, as a text that compares like the time; nil if it is none.
local function comparable(text)
  return text and string.match(text, '^(%d%d%d%d%-%d%d%-%d%dT[%d:.]+)Z$')
end

-- Whether a job ended after it was last dispatched. The published service writes down whatever it hears, so it puts a job back
-- into a list when it hears late that the job was accepted. A job that a peer adds again gets a later time of dispatch.
local function is_finished(id)
  local finished, dispatched = comparable(field(id, 'finished_at')), comparable(field(id, 'dispatched_at'))
  return finished and dispatched and dispatched <= finished
end

local function put_back(id, side)
  leave(id)
  if not field(id, 'json') then return end
  call('HDEL', id, 'dispatched_at', 'started_at', 'worker_uuid')
  call(side, LISTS[priority_of(id) + 1], id)
  made_ready = made_ready + 1
end

-- Which of these ids wait in the list to which peers push. Searching an id means walking through the list.
local function waiting_among(ids)
  local found = {}
  if #ids <= MAX_SINGLE_LOOKUPS then
    for _, id in ipairs(ids) do found[id] = call('LPOS', QUEUED, id) end
  else
    for _, id in ipairs(call('LRANGE', QUEUED, 0, -1)) do found[id] = true end
  end
  return found
end

-- Drops old finished jobs, which its peers would keep forever: the last ones stay for a day. Drops a bounded number at a time,
-- and none while so many jobs wait that checking whether one was added again would take too long.
local function drop_finished(max_finished)
  local excess = call('ZCARD', FINISHED) - max_finished
  if excess <= math.min(max_finished / 10, MAX_ITEMS) then excess = 0 end
  excess = math.min(MAX_ITEMS, math.max(excess, call('ZCOUNT', FINISHED, '-inf', seconds(now_us - DAY_MS * 1000))))
  if excess == 0 or call('LLEN', QUEUED) > MAX_SCANNED then return end
  local ids = call('ZRANGE', FINISHED, 0, excess - 1)
  local waits = waiting_among(ids)
  for _, id in ipairs(ids) do
    call('ZREM', FINISHED, id)
    if waits[id] or call('ZSCORE', PROCESSING, id) or call('ZSCORE', DISPATCHED, id) then
      reopen(id)
    elseif field(id, 'finished_at') and field(id, 'json') then
      call('DEL', id)
    end
  end
end

local function finish(id, at, finished_at, json)
  leave(id)
  local max_finished = tonumber(SETTING)
  if max_finished == 0 then
    call('DEL', id)
    return
  end
  call('HSET', id, 'finished_at', finished_at)
  if json then call('HSET', id, 'json', json) end
  call('PEXPIRE', id, DAY_MS)
  call('ZADD', FINISHED, seconds(at), id)
  call('PEXPIRE', FINISHED, DAY_MS)
  drop_finished(max_finished)
end

-- Checks some waiting jobs, others at each call, and reopens finished ones that peers have added again.
local function reopen_some()
  local from = tonumber(call('HGET', STATE, 'looked') or 0)
  local ids = call('LRANGE', QUEUED, from, from + MAX_ITEMS - 1)
  for _, id in ipairs(ids) do reopen(id) end
  if #ids == MAX_ITEMS then
    call('HSET', STATE, 'looked', from + MAX_ITEMS)
  elseif from > 0 then
    call('HDEL', STATE, 'looked')
  end
end

-- -- functions that the scripts call ---------------------------------------------------------------

function layout.take(holder, ends)
  local id = next_job()
  if not id then return nil end
  moves = moves + 1
  local text = iso(now)
  call('HSET', id, 'dispatched_at', text)
  start(id, holder, sign(ends) + moves, text)
  return id
end

function layout.describe(run)
  return run.token, field(run.token, 'json') or '', meta_of(run.token)
end

function layout.holds(run)
  return call('ZSCORE', PROCESSING, run.token) and field(run.token, 'worker_uuid') == run.holder
    and field(run.token, 'json') and not is_finished(run.token)
end

-- A holder's jobs are extended latest first, so each gets a slightly earlier score.
function layout.extend(run, ends, never_less)
  moves = moves + 1
  local score = seconds(sign(ends) - moves)
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

function layout.unregister(holder)
  call('ZREM', LAST_SEEN, holder)
  call('SREM', IDLE, holder)
  call('SREM', BUSY, holder)
  call('HDEL', STATE, 'busy:' .. holder, 'assigned:' .. holder, 'heard:' .. holder)
end

local function set_progress(id, value)
  call('ZADD', PROGRESS, 'XX', value, id)
  if call('HEXISTS', RUNS, fence_field(id)) == 1 then call('HSET', RUNS, note_field(id), 1) end
end

function layout.progress(run, value)
  set_progress(run.token, value)
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
  local fence = call('HGET', RUNS, fence_field(id))
  if fence then forget({ fence = fence, token = id }) end
end

-- Takes back jobs that were dispatched and not accepted in time, drops lost workers, and takes back the jobs that lost or idle
-- workers were processing (an idle worker has dropped its job). The latest first, so that the earliest ends in front.
function layout.sweep()
  reopen_some()
  local back, limit = 0, seconds((now - LOST_AFTER_MS) * 1000)
  for _, id in ipairs(call('ZRANGE', DISPATCHED, limit, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, MAX_ITEMS)) do
    if is_finished(id) then
      leave(id)
    else
      put_back(id, 'RPUSH')
      back = back + 1
    end
  end
  for _, worker in ipairs(call('ZRANGE', LAST_SEEN, '-inf', limit, 'BYSCORE', 'LIMIT', 0, MAX_ITEMS)) do
    if not is_known(worker) then dismiss(worker) end
  end
  for _, id in ipairs(call('ZRANGE', PROCESSING, limit, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, MAX_ITEMS)) do
    local worker = field(id, 'worker_uuid') or ''
    if is_finished(id) then
      forget_run(id)
      leave(id)
    elseif not call('ZSCORE', LAST_SEEN, worker) or call('SISMEMBER', IDLE, worker) == 1 then
      forget_run(id)
      put_back(id, 'RPUSH')
      back = back + 1
    end
  end
  return back
end

function layout.cancel(id)
  for _, list in ipairs({ LISTS[priority_of(id) + 1], QUEUED }) do -- peers put every job back into QUEUED
    if call('LREM', list, 0, id) > 0 then return field(id, 'json') ~= nil and call('DEL', id) == 1 end
  end
  return false
end

function layout.counts()
  local ready = 0
  for _, list in ipairs(LISTS) do ready = ready + call('LLEN', list) end
  return { ready, 0, 0, call('ZCARD', PROCESSING) + call('ZCARD', DISPATCHED), 0, 0 }
end

-- Peers expect a progress of 0 from the beginning. A note in the ledger says whether a Windlass run has reported any.
local function describe_leased(id)
  local fence = call('HGET', RUNS, fence_field(id)) or nil
  local told = not fence or call('HEXISTS', RUNS, note_field(id)) == 1
  return row('running', id, field(id, 'json') or '', {
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

-- Deletes jobs. A key of the same name that is no job belongs to another program and stays.
local function drop_all(ids)
  local gone = 0
  for _, id in ipairs(ids) do
    leave(id)
    if field(id, 'json') then gone = gone + call('DEL', id) end
  end
  return gone
end

function layout.purge(state)
  local gone, left, room = 0, 0, MAX_ITEMS
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
      gone = gone + drop_all(call('ZRANGE', key, 0, MAX_ITEMS - 1))
      left = left + call('ZCARD', key)
    end
    if left == 0 then
      drop_all(call('ZRANGE', FINISHED, 0, MAX_ITEMS - 1))
      call('DEL', FINISHED) -- the hashes of the others expire within a day
    end
  end
  return gone, left
end

-- -- functions for the service, whose workers communicate by messages ---------------------------------

-- Records that a service heard of a worker at `at` (ms). Returns whether the worker still counts as alive.
local function record_sign_of_life(worker, at, service)
  local ends = at + LOST_AFTER_MS
  if ends <= now then return false end
  call('ZADD', HOLDERS, 'GT', whole(ends), worker)
  layout.beat(worker, ends)
  call('HSET', STATE, 'heard:' .. worker, service .. ' ' .. call('ZSCORE', LAST_SEEN, worker))
  return true
end

-- "processing" or "dispatched" if the worker has the job, else nil. A job that a peer dispatched has no mark of its worker:
-- the first worker that accepts it has it.
local function state_of(id, worker)
  local whose = field(id, 'worker_uuid')
  if not field(id, 'json') or is_finished(id) then return nil end
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
