-- Redis Work Queue's own part; layout.py has its key map. The token of a run is the item's id.

local QUEUE, PROCESSING, CLEANING = KEYS[4], KEYS[5], KEYS[6]
local PREFIX = string.sub(QUEUE, 1, -6)
local MOST = 1000
local FEW = 20 -- ids that are looked for one by one; to find more, a list is read as a whole
expect('list', QUEUE, PROCESSING, CLEANING)
layout.sweep_every = 1000
layout.returns_to_back = true

local function item(id) return PREFIX .. 'item:' .. id end
-- What is no string is no item: reading it would stop a script half-way.
local function exists(id) return call('TYPE', item(id)).ok == 'string' end

-- The document's key, and that of the packages 0.1.x. Each sort of peer knows only its own: ours is in both, and we
-- heed both.
local function leases(id) return PREFIX .. 'lease:' .. id, PREFIX .. 'leased_by_session:' .. id end
local function is_leased(id) return call('EXISTS', leases(id)) > 0 end

-- Its peers name their sessions by a UUID in hex.
local function session(holder)
  return string.sub(redis.sha1hex(holder), 1, 32)
end

function layout.check(id) expect('string', item(id)) end

function layout.add(id, data)
  if call('SETNX', item(id), data) == 0 then return 'k' end
  call('LPUSH', QUEUE, id)
  came = came + 1
  return 'a'
end

function layout.take(holder, ends)
  for _ = 1, MOST do
    local id = call('LMOVE', QUEUE, PROCESSING, 'RIGHT', 'LEFT')
    if not id then return nil end
    if not exists(id) then -- that is no item
      call('LREM', PROCESSING, 0, id)
    elseif is_leased(id) then
      -- Added twice, or taken back by a cleaner that saw no lease yet. Who works on it can complete it only where it is
      -- in `processing`, so there it stays; the sweep has it when that lease ends.
      call('LREM', PROCESSING, 0, id)
      call('LPUSH', PROCESSING, id)
    else
      for _, key in ipairs({ leases(id) }) do call('SET', key, session(holder), 'PX', whole(ends - now)) end
      return id
    end
  end
  return nil
end

function layout.describe(run)
  return run.token, call('GET', item(run.token)) or '', ''
end

-- Who completes an item is decided by its data, says the document; by `processing`, say the packages 0.1.x.
local function is_in_work(id)
  return exists(id) and call('LPOS', PROCESSING, id)
end

-- A lease that ran out is still ours while nobody has taken the item back.
function layout.holds(run)
  local mine, found = session(run.holder), call('MGET', leases(run.token))
  return (not found[1] or found[1] == mine) and (not found[2] or found[2] == mine) and is_in_work(run.token)
end

function layout.extend(run, ends, never_less)
  for _, key in ipairs({ leases(run.token) }) do
    if not never_less or call('PTTL', key) < ends - now then
      call('SET', key, session(run.holder), 'PX', whole(ends - now))
    end
  end
end

local function leave_processing(id)
  call('DEL', leases(id))
  call('LREM', PROCESSING, 0, id)
end

function layout.complete(run)
  leave_processing(run.token)
  call('DEL', item(run.token))
end

function layout.release(run)
  leave_processing(run.token)
  call('RPUSH', QUEUE, run.token)
  came = came + 1
end

function layout.retry(run)
  leave_processing(run.token)
  call('LPUSH', QUEUE, run.token)
  came = came + 1
end

layout.stall, layout.crash, layout.unknown, layout.broken = layout.retry, layout.retry, layout.retry, layout.retry
layout.fail = layout.complete

local function set_of(ids)
  local set = {}
  for _, id in ipairs(ids) do set[id] = true end
  return set
end

-- Those of some ids that are not in a list, each once. To look for one is to walk through the list, so many are looked
-- for in one walk.
local function unlisted(key, ids)
  local listed, rest = {}, {}
  if #ids <= FEW then
    for _, id in ipairs(ids) do listed[id] = call('LPOS', key, id) end
  else
    local wanted = set_of(ids)
    for at = 0, call('LLEN', key) - 1, MOST do
      for _, id in ipairs(call('LRANGE', key, at, at + MOST - 1)) do
        if wanted[id] then listed[id] = true end
      end
    end
  end
  for _, id in ipairs(ids) do
    if not listed[id] then
      listed[id] = true
      rest[#rest + 1] = id
    end
  end
  return rest
end

-- All entries of some ids leave a list. To remove one is to walk through the list; for many, all entries go round once,
-- from its left end to its right, but for these.
local function take_out(key, ids)
  if #ids <= FEW then
    for _, id in ipairs(ids) do call('LREM', key, 0, id) end
    return
  end
  local goes, ahead = set_of(ids), call('LLEN', key)
  while ahead > 0 do
    local entries, stay = call('LPOP', key, math.min(ahead, MOST)), {}
    for _, id in ipairs(entries) do
      if not goes[id] then stay[#stay + 1] = id end
    end
    if #stay > 0 then call('RPUSH', key, unpack(stay)) end
    ahead = ahead - #entries
  end
end

-- What comes back is nobody's. Else a fence of ours that had it could settle it once a peer has moved it to
-- `processing`, in the moment before the peer's lease is there.
local function disown(id)
  local fence = call('HGET', RUNS, pointer(id))
  local text = fence and call('HGET', RUNS, fence)
  if not text then return end
  local run = read_run(fence, text)
  forget(run)
  if is_raw(run.holder) then dismiss(run.holder) end
end

-- Those of some abandoned ids that do not wait already go to the back; how many.
local function bring_back(ids)
  for _, id in ipairs(ids) do disown(id) end
  local back = unlisted(QUEUE, ids)
  for _, id in ipairs(back) do call('LPUSH', QUEUE, id) end
  came = came + #back
  return #back
end

-- Light clean. An item without a lease may be one that a peer is just about to lease, and one in `cleaning` may be in
-- the hands of a peer's cleaner: it is taken back when it has been so for a second; from `processing` at once when
-- somebody asks. Who asks has as many looked at as it takes to bring some back, and asks again until none comes; else
-- it is some at a time, the oldest first, and others when there is nothing left to decide about them.
function layout.sweep(asked)
  local before, waiting = cmsgpack.unpack(call('HGET', STATE, 'bare') or '\128'), {}
  local function is_due(id)
    waiting[id] = math.min(before[id] or now, now)
    if now - waiting[id] < layout.sweep_every then return false end
    waiting[id] = nil
    return true
  end

  local offset, length = asked and 0 or tonumber(call('HGET', STATE, 'looked') or 0), call('LLEN', PROCESSING)
  if offset >= length then offset = 0 end
  local some = asked and math.max(length, 1) or MOST
  local ids = call('LRANGE', PROCESSING, -offset - some, -offset - 1)
  local at, gone, taken_back = #ids, 0, 0
  repeat -- the oldest first, so that they are in their old order at the back
    local out, due = {}, {}
    while at > 0 and #due < MOST do
      local id = ids[at]
      local lives = exists(id)
      if not lives or not is_leased(id) and (asked or is_due(id)) then
        out[#out + 1] = id
        due[#due + 1] = lives and id or nil
      end
      at = at - 1
    end
    take_out(PROCESSING, out)
    gone = gone + #out
    taken_back = bring_back(due)
  until at == 0 or taken_back > 0
  local passed = asked and 0 or math.max(0, offset + #ids - gone)

  local out, due = {}, {}
  for _, id in ipairs(call('LRANGE', CLEANING, 0, MOST - 1)) do
    local lives = exists(id)
    if not lives or is_due(id) then -- of what is done too: its cleaner would bring it back
      out[#out + 1] = id
      due[#due + 1] = lives and not is_leased(id) and id or nil
    end
  end
  take_out(CLEANING, out)
  taken_back = taken_back + bring_back(unlisted(PROCESSING, due))
  call('HSET', STATE, 'bare', cmsgpack.pack(waiting), 'looked', next(waiting) and offset or passed)
  return taken_back
end

function layout.cancel(id)
  if is_leased(id) or call('LREM', QUEUE, 0, id) == 0 then return false end
  return call('DEL', item(id)) == 1
end

function layout.counts()
  return { call('LLEN', QUEUE), 0, 0, call('LLEN', PROCESSING), 0, 0 }
end

local function describe_leased(id)
  local fence = call('HGET', RUNS, pointer(id))
  local run = fence and run_of(fence)
  return row('leased', id, call('GET', item(id)) or '', run and { holder = run.holder, fence = run.fence })
end

function layout.find(id)
  local data = call('GET', item(id))
  if not data then return nil end
  return (is_leased(id) or call('LPOS', PROCESSING, id)) and describe_leased(id) or row('ready', id, data)
end

-- From the right, where the next one is taken.
function layout.list(state, offset, limit)
  local rows = {}
  local key = (state == 'ready' and QUEUE) or (state == 'leased' and PROCESSING)
  if not key then return rows end
  local ids = call('LRANGE', key, -offset - limit, -offset - 1)
  for i = #ids, 1, -1 do
    local id = ids[i]
    rows[#rows + 1] = key == QUEUE and row('ready', id, call('GET', item(id)) or '') or describe_leased(id)
  end
  return rows
end

-- A second entry of an item that is worked on is no item that waits; like `take` it leaves the item in `processing`.
local function purge_ready()
  local gone = 0
  repeat
    local ids = call('RPOP', QUEUE, MOST) or {}
    for _, id in ipairs(ids) do
      if not is_leased(id) then
        gone = gone + call('DEL', item(id))
      elseif exists(id) and not call('LPOS', PROCESSING, id) then
        call('LPUSH', PROCESSING, id)
      end
    end
  until gone > 0 or #ids == 0
  return gone, call('LLEN', QUEUE)
end

function layout.purge(state)
  if state == 'ready' then return purge_ready() end
  if state ~= 'all' then return 0, 0 end
  local gone, left = 0, 0
  for _, key in ipairs({ QUEUE, PROCESSING, CLEANING }) do
    for _, id in ipairs(call('RPOP', key, MOST) or {}) do
      gone = gone + call('DEL', item(id))
      call('DEL', leases(id))
    end
    left = left + call('LLEN', key)
  end
  return gone, left
end
