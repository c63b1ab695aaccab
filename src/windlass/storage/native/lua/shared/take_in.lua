-- Enqueueing one job after the other. Needs what enqueue_one.lua needs, and the size of ENDED.

-- Looks the id up, applies the enqueue and stores the data. Drops the mark of an earlier job. Returns what `upsert` returns.
local function enqueue_one(id, data, text)
  local letter, only = upsert(id, data, text, call('ZSCORE', READY, id), call('HGET', LEASES, id), call('HGET', META, id))
  if letter == 'a' then call('HSET', DATA, id, data) end
  if letter == 'a' or only then drop_mark(id) end
  return letter, only
end
