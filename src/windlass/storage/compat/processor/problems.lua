-- Inconsistencies of a Processor Job Queue beside its ledger.
--
--   jobs         job whose JSON names this queue, in no list and not taken → waits, at the back
--   queued       uuid without a job → dropped; dispatched or processing too → dropped here
--   dispatched   uuid without a job, processing too, or finished → dropped
--   processing   uuid without a job, or finished → dropped; without progress → progress 0
--   progress     of a job that is not processing → dropped
--   finished     uuid of the last day without a job → dropped
--   counters     wrong number of jobs that a worker processes → recounted

local MAX_ENTRIES = 300 -- entries of a list that one step checks: keeps it at a few milliseconds
local NAME = string.match(QUEUED, '^jobs_queued:(.*)$')

local function is_taken(id)
  return call('ZSCORE', PROCESSING, id) or call('ZSCORE', DISPATCHED, id)
end

-- Whether a key is a job of this queue. Parses the JSON only if it contains the queue's name.
local function is_job_of_queue(key)
  local json = field(key, 'json')
  if not json or not string.find(json, NAME, 1, true) then return false end
  local fine, found = pcall(cjson.decode, json)
  return fine and type(found) == 'table' and found.queue_name == NAME
end

-- The uuids that are in none of the lists at this moment.
local function unlisted(ids)
  local wanted, rest = {}, {}
  for _, id in ipairs(ids) do wanted[id] = true end
  for _, list in ipairs(#ids > 0 and LISTS or {}) do
    if #ids <= MAX_SINGLE_LOOKUPS then
      for _, id in ipairs(ids) do
        if call('LPOS', list, id) then wanted[id] = nil end
      end
    else
      for at = 0, call('LLEN', list) - 1, MAX_ITEMS do
        for _, id in ipairs(call('LRANGE', list, at, at + MAX_ITEMS - 1)) do wanted[id] = nil end
      end
    end
  end
  for _, id in ipairs(ids) do
    if wanted[id] then rest[#rest + 1] = id end
  end
  return rest
end

local function is_orphan(id)
  return is_job_of_queue(id) and not field(id, 'finished_at') and not is_taken(id)
end

local function orphans(cursor)
  local found, ids = call('SCAN', cursor, 'COUNT', MAX_ENTRIES, 'TYPE', 'hash'), {}
  for _, key in ipairs(found[2]) do
    if is_orphan(key) then ids[#ids + 1] = key end
  end
  return found[1], ids
end

function compare.jobs(cursor)
  local following, lost = search(LISTS, cursor, orphans)
  local idle = {}
  for _, id in ipairs(lost) do
    if is_orphan(id) then idle[#idle + 1] = id end
  end
  for _, id in ipairs(unlisted(idle)) do
    if report('in no list', id) then
      call('LPUSH', LISTS[priority_of(id) + 1], id)
      made_ready = made_ready + 1
    end
  end
  return following
end

-- Checks all lists, one after the other. The cursor is the list and the position in it. New entries come at the left end.
function compare.queued(cursor)
  local which, from = string.match(cursor, '^(%d+) (%d+)$')
  which, from = tonumber(which or 1), tonumber(from or 0)
  local ids = call('LRANGE', LISTS[which], from, from + MAX_ENTRIES - 1)
  local kept = 0
  for _, id in ipairs(ids) do
    local kind = (not field(id, 'json') and 'no job') or (is_taken(id) and 'running too')
    if kind and report(kind, id) then call('LREM', LISTS[which], 1, id) else kept = kept + 1 end
  end
  if #ids == MAX_ENTRIES then return which .. ' ' .. from + kept end
  return which < #LISTS and which + 1 .. ' 0' or '0'
end

local function scan(key, cursor)
  local found, ids = call('ZSCAN', key, cursor, 'COUNT', 200), {}
  for i = 1, #found[2], 2 do ids[#ids + 1] = found[2][i] end
  return found[1], ids
end

function compare.dispatched(cursor)
  local following, ids = scan(DISPATCHED, cursor)
  for _, id in ipairs(ids) do
    local kind = (not field(id, 'json') and 'no job') or (call('ZSCORE', PROCESSING, id) and 'processed too')
      or (is_finished(id) and 'finished')
    if kind and report(kind, id) then call('ZREM', DISPATCHED, id) end
  end
  return following
end

function compare.processing(cursor)
  local following, ids = scan(PROCESSING, cursor)
  for _, id in ipairs(ids) do
    local kind = (not field(id, 'json') and 'no job') or (is_finished(id) and 'finished')
    if kind then
      if report(kind, id) then
        forget_run(id)
        leave(id)
      end
    elseif not call('ZSCORE', PROGRESS, id) and report('no progress', id) then
      call('ZADD', PROGRESS, 0, id)
    end
  end
  return following
end

function compare.progress(cursor)
  local following, ids = scan(PROGRESS, cursor)
  for _, id in ipairs(ids) do
    if not call('ZSCORE', PROCESSING, id) and report('not processed', id) then call('ZREM', PROGRESS, id) end
  end
  return following
end

function compare.finished(cursor)
  local following, ids = scan(FINISHED, cursor)
  for _, id in ipairs(ids) do
    local is_recent = tonumber(call('ZSCORE', FINISHED, id)) > now / 1000 - 86000 -- an older job may have just expired
    if is_recent and not field(id, 'json') and report('no job', id) then call('ZREM', FINISHED, id) end
  end
  return following
end

-- Counts all at one moment, so it skips a queue with very many jobs.
function compare.counters()
  if call('ZCARD', PROCESSING) > 10 * MAX_ITEMS then return '0' end
  local real = {}
  for _, id in ipairs(call('ZRANGE', PROCESSING, 0, -1)) do
    local worker = field(id, 'worker_uuid') or ''
    real[worker] = (real[worker] or 0) + 1
  end
  local all = call('HGETALL', STATE)
  for i = 1, #all, 2 do
    local worker = string.match(all[i], '^busy:(.*)$')
    if worker and tonumber(all[i + 1]) ~= (real[worker] or 0) and report('is busy with ' .. (real[worker] or 0), worker) then
      if real[worker] then call('HSET', STATE, all[i], real[worker]) else call('HDEL', STATE, all[i]) end
    end
  end
  return '0'
end
