#!lua flags=allow-oom
-- uses operations meta leases changes watching wake waiting endings
-- One step of a deep clean: compares a bounded part of one key with the others and mends what does not fit.
-- Each step is atomic and judges by what it sees then, so it is safe beside live workers.
--
--   data       a job in no index            → ready, in the priority that is known of it
--   ready      an entry with no job         → dropped; one that is leased too → dropped here
--   scheduled  an entry with no job, or a stale one → dropped
--   leases     a lease on no job            → dropped; one that no holder holds → the job goes back to the front
--   held       an entry with no lease       → dropped; its holder unknown → made known, and lost at once
--   blocked    a successor of nothing       → becomes a job, or is merged into the one that waits
--   meta, progress, notes, dead, broken, graves   entries that belong to nothing → dropped
--   state, idle                             lanes and waiters not heard of for long → dropped
--
-- ARGV     [4] the key's name as above  [5] cursor: "0" to begin
-- returns  { the clock's reading, next cursor or "0", things mended }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = open()
if replayed then
  if type(replayed) == 'table' then return replayed end
  local cursor, mended = string.match(replayed, '^(%d+) (%d+)$')
  return { reading, cursor, tonumber(mended) }
end
measure('ZCARD', READY, SCHEDULED, HELD, HOLDERS, DEAD, BROKEN, IDLE, PARKED, OUTBOX, WATCHED, TICKS)
measure('HLEN', LEASES, DATA, META, BLOCKED, PROGRESS, NOTES, GRAVES)
measure('LLEN', INBOX)

local mended = 0

local function exists(id)
  return call('HEXISTS', DATA, id) == 1
end

local function scheduled_entry(id)
  local m = read_meta(call('HGET', META, id))
  local member = m.seq > 0 and scheduled_member(m.seq, id)
  return member and call('ZSCORE', SCHEDULED, member) and member, m
end

local check = {}

function check.data(id)
  if call('HEXISTS', LEASES, id) == 1 or call('ZSCORE', READY, id) then return false end
  local member, m = scheduled_entry(id)
  if member then return false end
  place(id, m, 0)
  return true
end

function check.ready(id)
  local leased = call('HEXISTS', LEASES, id) == 1
  if exists(id) and not leased then return false end
  call('ZREM', READY, id)
  if not leased then call('HDEL', META, id) end
  return true
end

function check.scheduled(member)
  local id = string.sub(member, 9)
  if exists(id) and call('HEXISTS', LEASES, id) == 0 and not call('ZSCORE', READY, id) then
    local entry, m = scheduled_entry(id)
    if entry == member then return false end
    if not entry and #member > 8 then -- its record is lost, not its run time
      m.seq = struct.unpack('>I8', member)
      keep_meta(id, m, true)
      return true
    end
  end
  call('ZREM', SCHEDULED, member)
  return true
end

function check.leases(id)
  local lease = read_lease(call('HGET', LEASES, id))
  if not exists(id) then
    end_lease(id, lease)
    remove(id)
    return true
  end
  if call('ZSCORE', HELD, lease.holder .. '\0' .. id) then return false end
  end_lease(id, lease)
  local m = read_meta(call('HGET', META, id))
  m.priority = math.floor(lease.score / PRIORITY_STEP)
  put_back(id, m, 0, lease.score)
  return true
end

function check.held(member)
  local at = string.find(member, '%z') or 1
  local holder, id = string.sub(member, 1, at - 1), string.sub(member, at + 1)
  local text = call('HGET', LEASES, id)
  if not text or read_lease(text).holder ~= holder then
    call('ZREM', HELD, member)
    return true
  end
  return call('ZADD', HOLDERS, 'NX', now, holder) == 1
end

function check.blocked(id)
  if call('HEXISTS', LEASES, id) == 1 then return false end
  if not exists(id) then
    release_blocked(id, call('HGET', BLOCKED, id))
    return true
  end
  local member, m = scheduled_entry(id)
  local score = tonumber(call('ZSCORE', READY, id) or nil)
  local run_at = member and tonumber(call('ZSCORE', SCHEDULED, member)) or 0
  if member then call('ZREM', SCHEDULED, member) end
  if score then m.priority = math.floor(score / PRIORITY_STEP) end
  call('ZREM', READY, id)
  put_back(id, m, run_at, score)
  return true
end

function check.meta(id)
  return not exists(id) and call('HDEL', META, id) == 1
end

function check.notes(id)
  return not exists(id) and call('HDEL', NOTES, id) == 1
end

function check.progress(id)
  return call('HEXISTS', LEASES, id) == 0 and call('HDEL', PROGRESS, id) == 1
end

function check.dead(id)
  return call('HEXISTS', GRAVES, id) == 0 and call('ZREM', DEAD, id) == 1
end

function check.broken(id)
  return call('HEXISTS', GRAVES, id) == 0 and call('ZREM', BROKEN, id) == 1
end

function check.graves(id)
  return not call('ZSCORE', DEAD, id) and not call('ZSCORE', BROKEN, id) and call('HDEL', GRAVES, id) == 1
end

function check.idle(waiter)
  return tonumber(call('ZSCORE', IDLE, waiter)) < now and call('ZREM', IDLE, waiter) == 1
end

function check.state(field)
  if string.sub(field, 1, 5) ~= 'lane:' or field == lane_field then return false end
  local heard = string.match(call('HGET', STATE, field), '^%d+ (%d+)')
  return (not heard or is_forgotten(field, heard)) and call('HDEL', STATE, field) == 1
end

local SCANNED = {
  data = DATA, ready = READY, scheduled = SCHEDULED, leases = LEASES, held = HELD, blocked = BLOCKED,
  meta = META, progress = PROGRESS, notes = NOTES, dead = DEAD, broken = BROKEN, graves = GRAVES, idle = IDLE, state = STATE,
}
local key = SCANNED[ARGV[4]]
local step = 2
local found
if call('TYPE', key).ok == 'zset' then
  found = call('ZSCAN', key, ARGV[5], 'COUNT', 200)
else
  -- Payloads need not be read; servers that can leave them out do.
  found = redis.pcall('HSCAN', key, ARGV[5], 'COUNT', 100, 'NOVALUES')
  step = 1
  if found.err then
    found = call('HSCAN', key, ARGV[5], 'COUNT', 100)
    step = 2
  end
end
for i = 1, #found[2], step do
  if check[ARGV[4]](found[2][i]) then mended = mended + 1 end
end
close(found[1] .. ' ' .. mended)
wake(came)
return { reading, found[1], mended }
