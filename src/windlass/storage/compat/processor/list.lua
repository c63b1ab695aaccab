#!lua flags=no-writes
-- Answers a list request of the service.
--
-- ARGV     [2] "queued", "dispatched", "processing" or "workers"
-- returns  { total, the first entries: { uuid, priority } · { uuid, worker, score } ·
--            { uuid, worker, score, progress } · { worker, "idle", "busy" or "other", score } }
-- errors   WRONGTYPE

SETTING = ARGV[1]
local what, found = ARGV[2], {}

local function each_of(key, describe)
  local entries = call('ZRANGE', key, 0, MAX_ITEMS - 1, 'WITHSCORES')
  for i = 1, #entries, 2 do found[#found + 1] = describe(entries[i], entries[i + 1]) end
  return { call('ZCARD', key), found }
end

if what == 'queued' then
  for i = 1, #LISTS do
    local ids = #found < MAX_ITEMS and call('LRANGE', LISTS[i], #found - MAX_ITEMS, -1) or {}
    for at = #ids, 1, -1 do found[#found + 1] = { ids[at], i - 1 } end
  end
  return { layout.counts()[1], found }
elseif what == 'dispatched' then
  return each_of(DISPATCHED, function(id, score) return { id, field(id, 'worker_uuid') or '', score } end)
elseif what == 'processing' then
  return each_of(PROCESSING, function(id, score)
    return { id, field(id, 'worker_uuid') or '', score, call('ZSCORE', PROGRESS, id) or '0' }
  end)
end
return each_of(LAST_SEEN, function(worker, score)
  local state = call('SISMEMBER', IDLE, worker) == 1 and 'idle' or call('SISMEMBER', BUSY, worker) == 1 and 'busy'
  return { worker, state or 'other', score } -- "other": a Windlass worker, which leases jobs by itself
end)
