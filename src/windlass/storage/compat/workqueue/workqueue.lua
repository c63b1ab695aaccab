-- Redis Work Queue's own part; layout.py has its key map. The token of a run is the item's id.

local QUEUE, PROCESSING, CLEANING = KEYS[4], KEYS[5], KEYS[6]
local PREFIX = string.sub(QUEUE, 1, -6)
local MAX_SINGLE_LOOKUPS = 20 -- more ids than this are searched in one walk through the list
expect('list', QUEUE, PROCESSING, CLEANING)
layout.sweep_every = 1000
layout.returns_to_back = true

local function item(id) return PREFIX .. 'item:' .. id end
-- A key that is no string is no item: reading it would stop a script half-way.
local function exists(id) return call('TYPE', item(id)).ok == 'string' end

-- The lease keys of the document and of the packages 0.1.x. Each kind of peer knows only its own, so Windlass writes and
-- respects both.
local function leases(id) return PREFIX .. 'lease:' .. id, PREFIX .. 'leased_by_session:' .. id end
local function is_leased(id) return call('EXISTS', leases(id)) > 0 end

-- A session id in the form that peers use: a UUID in hex.
local function session(holder)
  return string.sub(redis.sha1hex(holder), 1, 32)
end

function layout.check(id) expect('string', item(id)) end

function layout.add(id, data)
  if call('SETNX', item(id), data) == 0 then return 'k' end
  call('LPUSH', QUEUE, id)
  made_ready = made_ready + 1
  return 'a'
end

function layout.take(holder, ends)
  for _ = 1, MAX_ITEMS do
    local id = call('LMOVE', QUEUE, PROCESSING, 'RIGHT', 'LEFT')
    if not id then return nil end
    if not exists(id) then
      call('LREM', PROCESSING, 0, id)
    elseif is_leased(id) then
      -- Added twice, or taken back by a cleaner before its lease was set. Its worker can complete it only while it is in
      -- `processing`, so it stays there until that lease ends and a sweep takes it back.
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

-- Whether an item can be completed: the document requires its data, the packages 0.1.x its entry in `processing`.
local function is_in_work(id)
  return exists(id) and call('LPOS', PROCESSING, id)
end

-- An expired lease still counts until another program takes the item back.
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
  made_ready = made_ready + 1
end

function layout.retry(run)
  leave_processing(run.token)
  call('LPUSH', QUEUE, run.token)
  made_ready = made_ready + 1
end

layout.stall, layout.crash, layout.unknown, layout.broken = layout.retry, layout.retry, layout.retry, layout.retry
layout.fail = layout.complete

local function set_of(ids)
  local set = {}
  for _, id in ipairs(ids) do set[id] = true end
  return set
end

-- The ids that are not in a list, each once. Searching an id means walking through the list, so many ids share one walk.
local function unlisted(key, ids)
  local listed, rest = {}, {}
  if #ids <= MAX_SINGLE_LOOKUPS then
    for _, id in ipairs(ids) do listed[id] = call('LPOS', key, id) end
  else
    local wanted = set_of(ids)
    for at = 0, call('LLEN', key) - 1, MAX_ITEMS do
      for _, id in ipairs(call('LRANGE', key, at, at + MAX_ITEMS - 1)) do
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

-- Removes all entries of some ids from a list. Removing an id means walking through the list, so for many ids this rotates
-- the list once, from its left end to its right, and leaves these out.
local function take_out(key, ids)
  if #ids <= MAX_SINGLE_LOOKUPS then
    for _, id in ipairs(ids) do call('LREM', key, 0, id) end
    return
  end
  local removed, ahead = set_of(ids), call('LLEN', key)
  while ahead > 0 do
    local entries, kept = call('LPOP', key, math.min(ahead, MAX_ITEMS)), {}
    for _, id in ipairs(entries) do
      if not removed[id] then kept[#kept + 1] = id end
    end
    if #kept > 0 then call('RPUSH', key, unpack(kept)) end
    ahead = ahead - #entries
  end
end

-- Forgets the run of an item that is taken back. Otherwise its old fence could settle the item after a peer has moved it to
-- `processing` and before the peer's lease is set.
local function disown(id)
  local fence = call('HGET', RUNS, fence_field(id))
  local text = fence and call('HGET', RUNS, fence)
  if not text then return end
  local run = read_run(fence, text)
  forget(run)
  if is_raw(run.holder) then dismiss(run.holder) end
end

-- Puts abandoned ids that do not wait already to the back. Returns how many.
local function bring_back(ids)
  for _, id in ipairs(ids) do disown(id) end
  local back = unlisted(QUEUE, ids)
  for _, id in ipairs(back) do call('LPUSH', QUEUE, id) end
  made_ready = made_ready + #back
  return #back
end

-- Light clean. A peer may be about to lease an item without a lease, and a peer's cleaner may be handling an item in
-- `cleaning`, so an item is taken back once it has been so for a second; with `asked`, from `processing` at once. With
-- `asked`, this checks entries until it has taken some back, and the caller repeats until none comes. Otherwise it checks a
-- bounded number, the oldest first, and moves on when it has decided about all of them.
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
  local some = asked and math.max(length, 1) or MAX_ITEMS
  local ids = call('LRANGE', PROCESSING, -offset - some, -offset - 1)
  local at, gone, taken_back = #ids, 0, 0
  repeat -- the oldest first, so that they keep their order at the back
    local gone_ids, due = {}, {}
    while at > 0 and #due < MAX_ITEMS do
      local id = ids[at]
      local lives = exists(id)
      if not lives or not is_leased(id) and (asked or is_due(id)) then
        gone_ids[#gone_ids + 1] = id
        due[#due + 1] = lives and id or nil
      end
      at = at - 1
    end
    take_out(PROCESSING, gone_ids)
    gone = gone + #gone_ids
    taken_back = bring_back(due)
  until at == 0 or taken_back > 0
  local passed = asked and 0 or math.max(0, offset + #ids - gone)

  local gone_ids, due = {}, {}
  for _, id in ipairs(call('LRANGE', CLEANING, 0, MAX_ITEMS - 1)) do
    local lives = exists(id)
    if not lives or is_due(id) then -- finished ids too: the peer's cleaner would put them back into the queue
      gone_ids[#gone_ids + 1] = id
      due[#due + 1] = lives and not is_leased(id) and id or nil
    end
  end
  take_out(CLEANING, gone_ids)
  taken_back = taken_back + bring_back(unlisted(PROCESSING, due))
  local continue_at = next(waiting) and offset or passed
  if next(waiting) then call('HSET', STATE, 'bare', cmsgpack.pack(waiting)) else call('HDEL', STATE, 'bare') end
  if continue_at > 0 then call('HSET', STATE, 'looked', continue_at) else call('HDEL', STATE, 'looked') end
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
  local fence = call('HGET', RUNS, fence_field(id))
  local run = fence and run_of(fence)
  return row('running', id, call('GET', item(id)) or '', run and { holder = run.holder, fence = run.fence })
end

function layout.find(id)
  local data = call('GET', item(id))
  if not data then return nil end
  return (is_leased(id) or call('LPOS', PROCESSING, id)) and describe_leased(id) or row('ready', id, data)
end

-- From the right end, where the next item is taken.
function layout.list(state, offset, limit)
  local rows = {}
  local key = (state == 'ready' and QUEUE) or (state == 'running' and PROCESSING)
  if not key then return rows end
  local ids = call('LRANGE', key, -offset - limit, -offset - 1)
  for i = #ids, 1, -1 do
    local id = ids[i]
    rows[#rows + 1] = key == QUEUE and row('ready', id, call('GET', item(id)) or '') or describe_leased(id)
  end
  return rows
end

-- A second entry of a leased item is not a waiting item: like `take`, this leaves the item in `processing`.
local function purge_ready()
  local gone = 0
  repeat
    local ids = call('RPOP', QUEUE, MAX_ITEMS) or {}
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
    for _, id in ipairs(call('RPOP', key, MAX_ITEMS) or {}) do
      gone = gone + call('DEL', item(id))
      call('DEL', leases(id))
    end
    left = left + call('LLEN', key)
  end
  return gone, left
end
