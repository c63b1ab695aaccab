-- What does not fit in a queue of Processor Job Queue, beside its ledger.
--
--   jobs         a job of this queue, by what its JSON says, that is in no list and that nobody has → waits, at the back
--   queued       a uuid with no job → dropped; one that somebody has → dropped here
--   dispatched   a uuid with no job, or that is processed too → dropped
--   processing   a uuid with no job → dropped; one without progress → gets it
--   progress     of a job that is not processed → dropped
--   finished     a uuid of the last day with no job → dropped
--   counters     how many jobs a worker processes, where that is counted and wrong → counted anew

local SOME = 300 -- entries of a list that are looked at in one step
local NAME = string.match(QUEUED, '^jobs_queued:(.*)$')

local function is_had(id)
  return call('ZSCORE', PROCESSING, id) or call('ZSCORE', DISPATCHED, id)
end

-- Whether this key is a job of this queue. Its JSON is looked into only if the name is in there.
local function is_ours(key)
  local json = field(key, 'json')
  if not json or not string.find(json, NAME, 1, true) then return false end
  local fine, found = pcall(cjson.decode, json)
  return fine and type(found) == 'table' and found.queue_name == NAME
end

-- Those of some uuids that are in none of the lists, at this moment.
local function unlisted(ids)
  local wanted, rest = {}, {}
  for _, id in ipairs(ids) do wanted[id] = true end
  for _, list in ipairs(#ids > 0 and LISTS or {}) do
    if #ids <= FEW then
      for _, id in ipairs(ids) do
        if call('LPOS', list, id) then wanted[id] = nil end
      end
    else
      for at = 0, call('LLEN', list) - 1, MOST do
        for _, id in ipairs(call('LRANGE', list, at, at + MOST - 1)) do wanted[id] = nil end
      end
    end
  end
  for _, id in ipairs(ids) do
    if wanted[id] then rest[#rest + 1] = id end
  end
  return rest
end

local function is_idle(id)
  return is_ours(id) and not field(id, 'finished_at') and not is_had(id)
end

local function idle_jobs(cursor)
  local found, ids = call('SCAN', cursor, 'COUNT', SOME, 'TYPE', 'hash'), {}
  for _, key in ipairs(found[2]) do
    if is_idle(key) then ids[#ids + 1] = key end
  end
  return found[1], ids
end

function compare.jobs(cursor)
  local following, lost = search(LISTS, cursor, idle_jobs)
  local idle = {}
  for _, id in ipairs(lost) do
    if is_idle(id) then idle[#idle + 1] = id end
  end
  for _, id in ipairs(unlisted(idle)) do
    if find('in no list', id) then
      call('LPUSH', LISTS[priority_of(id) + 1], id)
      came = came + 1
    end
  end
  return following
end

-- All lists, one after the other: the cursor is which, and how far. New entries come at the left end.
function compare.queued(cursor)
  local which, from = string.match(cursor, '^(%d+) (%d+)$')
  which, from = tonumber(which or 1), tonumber(from or 0)
  local ids = call('LRANGE', LISTS[which], from, from + SOME - 1)
  local stay = 0
  for _, id in ipairs(ids) do
    local kind = (not field(id, 'json') and 'no job') or (is_had(id) and 'somebody has it')
    if kind and find(kind, id) then call('LREM', LISTS[which], 1, id) else stay = stay + 1 end
  end
  if #ids == SOME then return which .. ' ' .. from + stay end
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
    if kind and find(kind, id) then call('ZREM', DISPATCHED, id) end
  end
  return following
end

function compare.processing(cursor)
  local following, ids = scan(PROCESSING, cursor)
  for _, id in ipairs(ids) do
    if not field(id, 'json') then
      if find('no job', id) then
        forget_run(id)
        leave(id)
      end
    elseif not call('ZSCORE', PROGRESS, id) and find('no progress', id) then
      call('ZADD', PROGRESS, 0, id)
    end
  end
  return following
end

function compare.progress(cursor)
  local following, ids = scan(PROGRESS, cursor)
  for _, id in ipairs(ids) do
    if not call('ZSCORE', PROCESSING, id) and find('not processed', id) then call('ZREM', PROGRESS, id) end
  end
  return following
end

function compare.finished(cursor)
  local following, ids = scan(FINISHED, cursor)
  for _, id in ipairs(ids) do
    local young = tonumber(call('ZSCORE', FINISHED, id)) > now / 1000 - 86000 -- older ones may have just gone, as they do
    if young and not field(id, 'json') and find('no job', id) then call('ZREM', FINISHED, id) end
  end
  return following
end

-- All at one moment, so only where it is soon done.
function compare.counters()
  if call('ZCARD', PROCESSING) > 10 * MOST then return '0' end
  local real = {}
  for _, id in ipairs(call('ZRANGE', PROCESSING, 0, -1)) do
    local worker = field(id, 'worker_uuid') or ''
    real[worker] = (real[worker] or 0) + 1
  end
  local all = call('HGETALL', STATE)
  for i = 1, #all, 2 do
    local worker = string.match(all[i], '^busy:(.*)$')
    if worker and tonumber(all[i + 1]) ~= (real[worker] or 0) and find('is busy with ' .. (real[worker] or 0), worker) then
      if real[worker] then call('HSET', STATE, all[i], real[worker]) else call('HDEL', STATE, all[i]) end
    end
  end
  return '0'
end
