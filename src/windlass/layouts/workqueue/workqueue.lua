-- Redis Work Queue's own part; layout.py has its key map. The token of a run is the item's id.

local QUEUE, PROCESSING = KEYS[4], KEYS[5]
local PREFIX = string.sub(QUEUE, 1, -6)
local MOST = 1000
expect('list', QUEUE, PROCESSING)
layout.sweep_every = 1000

local function item(id) return PREFIX .. 'item:' .. id end
local function lease(id) return PREFIX .. 'lease:' .. id end

-- Its peers name their sessions by a UUID in hex.
local function session(holder)
  return string.sub(redis.sha1hex(holder), 1, 32)
end

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
    -- An id without data is no item; one with a lease is a second entry of an item that somebody works on.
    if call('EXISTS', item(id)) == 1 and call('SET', lease(id), session(holder), 'PX', whole(ends - now), 'NX') then
      return id
    end
    call('LREM', PROCESSING, 1, id)
  end
  return nil
end

function layout.describe(run)
  return run.token, call('GET', item(run.token)) or '', ''
end

function layout.holds(run)
  return call('GET', lease(run.token)) == session(run.holder) and call('EXISTS', item(run.token)) == 1
end

-- A lease that ran out is nobody's: the key is gone.
function layout.abandoned(run)
  local owner = call('GET', lease(run.token))
  return (not owner or owner == session(run.holder)) and call('EXISTS', item(run.token)) == 1
    and call('LPOS', PROCESSING, run.token)
end

function layout.extend(run, ends)
  call('PEXPIRE', lease(run.token), whole(ends - now))
end

local function leave_processing(id)
  call('DEL', lease(id))
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

-- Light clean. An item without a lease may be one that a peer is just about to lease: it is taken back when it was found
-- so by the sweep before, or at once when somebody asks for a clean.
function layout.sweep(asked)
  local taken_back, bare = 0, {}
  local seen = {}
  for _, id in ipairs(cmsgpack.unpack(call('HGET', STATE, 'bare') or '\144')) do seen[id] = true end
  for _, id in ipairs(call('LRANGE', PROCESSING, 0, -1)) do
    if call('EXISTS', item(id)) == 0 then
      call('LREM', PROCESSING, 0, id)
    elseif call('EXISTS', lease(id)) == 0 then
      if asked or seen[id] then
        call('LREM', PROCESSING, 0, id)
        if not call('LPOS', QUEUE, id) then
          call('LPUSH', QUEUE, id)
          came = came + 1
          taken_back = taken_back + 1
        end
      else
        bare[#bare + 1] = id
      end
    end
  end
  call('HSET', STATE, 'bare', cmsgpack.pack(bare))
  return taken_back
end

-- Deep clean: items that are in no list at all, because somebody died between two commands.
function layout.deep_clean(cursor)
  local listed, mended = {}, 0
  for _, key in ipairs({ QUEUE, PROCESSING }) do
    for _, id in ipairs(call('LRANGE', key, 0, -1)) do listed[id] = true end
  end
  local pattern = string.gsub(item(''), '[%[%]%?%*\\]', '\\%0') .. '*'
  local found = call('SCAN', cursor, 'MATCH', pattern, 'COUNT', MOST)
  for _, key in ipairs(found[2]) do
    local id = string.sub(key, #item('') + 1)
    if not listed[id] and call('EXISTS', lease(id)) == 0 then
      call('LPUSH', QUEUE, id)
      came = came + 1
      mended = mended + 1
    end
  end
  return found[1], mended
end

function layout.cancel(id)
  if call('LREM', QUEUE, 0, id) == 0 then return false end
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
  return call('EXISTS', lease(id)) == 1 and describe_leased(id) or row('ready', id, data)
end

-- From the right, where the next one is taken.
function layout.list(state, offset, limit)
  local rows = {}
  local key = (state == 'ready' and QUEUE) or (state == 'leased' and PROCESSING)
  if not key then return rows end
  local ids = call('LRANGE', key, -offset - limit, -offset - 1)
  for i = #ids, 1, -1 do
    rows[#rows + 1] = state == 'ready' and row('ready', ids[i], call('GET', item(ids[i])) or '') or describe_leased(ids[i])
  end
  return rows
end

function layout.purge(state)
  local gone, left = 0, 0
  for key, name in pairs({ [QUEUE] = 'ready', [PROCESSING] = 'leased' }) do
    if state == 'all' or state == name then
      for _, id in ipairs(call('RPOP', key, MOST) or {}) do
        gone = gone + call('DEL', item(id))
        call('DEL', lease(id))
      end
      left = left + call('LLEN', key)
    end
  end
  return gone, left
end
