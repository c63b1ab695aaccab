-- Redis Work Queue's own part; layout.py has its key map. The token of a run is the item's id.

local QUEUE, PROCESSING, CLEANING = KEYS[4], KEYS[5], KEYS[6]
local PREFIX = string.sub(QUEUE, 1, -6)
local MOST = 1000
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

-- Light clean. An item without a lease may be one that a peer is just about to lease, and one in `cleaning` may be in
-- the hands of a peer's cleaner: it is taken back when it has been so for a second; from `processing` at once when
-- somebody asks. Who asks has all looked at; else it is some at a time, the oldest first, and others when there is
-- nothing left to decide about them.
function layout.sweep(asked)
  local before, waiting, taken_back = cmsgpack.unpack(call('HGET', STATE, 'bare') or '\128'), {}, 0
  local function is_due(id)
    waiting[id] = math.min(before[id] or now, now)
    if now - waiting[id] < layout.sweep_every then return false end
    waiting[id] = nil
    return true
  end
  local function take_back(id)
    if call('LPOS', QUEUE, id) then return end
    call('LPUSH', QUEUE, id)
    came = came + 1
    taken_back = taken_back + 1
  end

  local offset, length = asked and 0 or tonumber(call('HGET', STATE, 'looked') or 0), call('LLEN', PROCESSING)
  if offset >= length then offset = 0 end
  local some = asked and math.max(length, 1) or MOST
  local ids = call('LRANGE', PROCESSING, -offset - some, -offset - 1)
  for i = #ids, 1, -1 do -- the oldest first, so that they are in their old order at the back
    local id = ids[i]
    if not exists(id) then
      call('LREM', PROCESSING, 0, id)
    elseif not is_leased(id) and (asked or is_due(id)) then
      call('LREM', PROCESSING, 0, id)
      take_back(id)
    end
  end
  for _, id in ipairs(call('LRANGE', CLEANING, 0, MOST - 1)) do
    if not exists(id) then
      call('LREM', CLEANING, 0, id) -- its cleaner would bring back what is done
    elseif is_due(id) then
      call('LREM', CLEANING, 0, id)
      if not is_leased(id) and not call('LPOS', PROCESSING, id) then take_back(id) end
    end
  end
  call('HSET', STATE, 'bare', cmsgpack.pack(waiting), 'looked', next(waiting) and offset or offset + some)
  return taken_back
end

-- Deep clean: items that are in no list at all, because somebody died between two commands.
function layout.deep_clean(cursor)
  local listed, mended = {}, 0
  for _, key in ipairs({ QUEUE, PROCESSING, CLEANING }) do
    for _, id in ipairs(call('LRANGE', key, 0, -1)) do listed[id] = true end
  end
  local pattern = string.gsub(item(''), '[%[%]%?%*\\]', '\\%0') .. '*'
  local found = call('SCAN', cursor, 'MATCH', pattern, 'COUNT', MOST, 'TYPE', 'string')
  for _, key in ipairs(found[2]) do
    local id = string.sub(key, #item('') + 1)
    if not listed[id] and not is_leased(id) then
      call('LPUSH', QUEUE, id)
      came = came + 1
      mended = mended + 1
    end
  end
  return found[1], mended
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
  return is_leased(id) and describe_leased(id) or row('ready', id, data)
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

function layout.purge(state)
  local gone, left = 0, 0
  for key, name in pairs({ [QUEUE] = 'ready', [PROCESSING] = 'leased' }) do
    if state == 'all' or state == name then
      for _, id in ipairs(call('RPOP', key, MOST) or {}) do
        gone = gone + call('DEL', item(id))
        call('DEL', leases(id))
      end
      left = left + call('LLEN', key)
    end
  end
  if state == 'all' then call('DEL', CLEANING) end
  return gone, left
end
