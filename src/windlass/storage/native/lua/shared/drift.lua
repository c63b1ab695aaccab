-- What does not fit. A part of the queue is compared with the others, a bounded number of entries a call; what is amiss is
-- counted, named, and mended where it is to be. `audit` mends and `inspect` only looks: both judge by this one text.
--
--   scheduled  an entry with no job, or that is not its job's place → dropped; one whose META record is lost → written anew
--   data       a job in no index            → ready, in the priority that is known of it
--   ready      an entry with no job         → dropped; one that is leased too → dropped here
--   leases     a lease on no job            → dropped; one that no holder holds → the job goes back to the front
--   held       an entry with no lease       → dropped; its holder unknown → made known, and lost at once
--   blocked    a successor of nothing       → becomes a job, or is merged into the one that waits
--   meta, progress, last_errors   entries that belong to nothing → dropped
--   dead, broken   an entry with no dead_record   → dropped; one whose dead_record says the other → moved there
--   dead_records     one that is in neither       → dropped
--   ticks      the next tick of no schedule → dropped
--   counters   `seq` behind the jobs that are ready → set to theirs; numbers of jobs and of entries that differ are told

local EXAMPLES = 10 -- that one call names
local mends = false
local amiss, mended, named = 0, 0, {}

-- Something is amiss. Whether it is to be mended, now.
local function find(kind, id)
  amiss = amiss + 1
  if #named < 2 * EXAMPLES then
    named[#named + 1] = kind
    named[#named + 1] = id
  end
  if mends then mended = mended + 1 end
  return mends
end

-- Something is amiss that is mended elsewhere, or nowhere.
local function mention(kind, id)
  local before = mends
  mends = false
  find(kind, id)
  mends = before
end

local function exists(id)
  return call('HEXISTS', DATA, id) == 1
end

local function is_leased(id)
  return call('HEXISTS', LEASES, id) == 1
end

local function scheduled_entry(id)
  local m = read_meta(call('HGET', META, id))
  local member = m.seq > 0 and scheduled_member(m.seq, id)
  return member and call('ZSCORE', SCHEDULED, member) and member, m
end

local compare = {}

function compare.data(id)
  if is_leased(id) or call('ZSCORE', READY, id) then return end
  local member, m = scheduled_entry(id)
  if not member and find('in no index', id) then place(id, m, 0) end
end

function compare.ready(id)
  local leased = is_leased(id)
  if exists(id) and not leased then return end
  if find(leased and 'leased too' or 'no job', id) then
    call('ZREM', READY, id)
    if not leased then call('HDEL', META, id) end
  end
end

function compare.scheduled(member)
  local id = string.sub(member, 9)
  local kind = 'no job'
  if exists(id) then
    kind = (is_leased(id) and 'leased too') or (call('ZSCORE', READY, id) and 'ready too') or 'not its place'
  end
  if kind == 'not its place' then
    local entry, m = scheduled_entry(id)
    if entry == member then return end
    if not entry and #member > 8 then -- its record is lost, not its run time
      if find('no record', id) then
        m.seq = struct.unpack('>I8', member)
        keep_meta(id, m, true)
      end
      return
    end
  end
  if find(kind, id) then call('ZREM', SCHEDULED, member) end
end

function compare.leases(id)
  local lease = read_lease(call('HGET', LEASES, id))
  if not exists(id) then
    if find('no job', id) then
      end_lease(id, lease)
      remove(id)
    end
  elseif not call('ZSCORE', HELD, lease.holder .. '\0' .. id) and find('nobody holds it', id) then
    end_lease(id, lease)
    local m = read_meta(call('HGET', META, id))
    m.priority = math.floor(lease.score / PRIORITY_STEP)
    put_back(id, m, 0, lease.score)
  end
end

function compare.held(member)
  local at = string.find(member, '%z') or 1
  local holder, id = string.sub(member, 1, at - 1), string.sub(member, at + 1)
  local text = call('HGET', LEASES, id)
  if not text or read_lease(text).holder ~= holder then
    if find('no lease', id) then call('ZREM', HELD, member) end
  elseif not call('ZSCORE', HOLDERS, holder) and find('holder unknown', id) then
    call('ZADD', HOLDERS, now, holder)
  end
end

function compare.blocked(id)
  if is_leased(id) then return end
  local waits = exists(id)
  if not find(waits and 'behind a job that waits' or 'behind nothing', id) then return end
  if not waits then
    release_blocked(id, call('HGET', BLOCKED, id))
    return
  end
  local member, m = scheduled_entry(id)
  local score = tonumber(call('ZSCORE', READY, id) or nil)
  local run_at = member and tonumber(call('ZSCORE', SCHEDULED, member)) or 0
  if member then call('ZREM', SCHEDULED, member) end
  if score then m.priority = math.floor(score / PRIORITY_STEP) end
  call('ZREM', READY, id)
  put_back(id, m, run_at, score)
end

function compare.meta(id)
  if not exists(id) and find('no job', id) then call('HDEL', META, id) end
end

function compare.last_errors(id)
  if not exists(id) and find('no job', id) then call('HDEL', LAST_ERRORS, id) end
end

function compare.progress(id)
  if not is_leased(id) and find('no lease', id) then call('HDEL', PROGRESS, id) end
end

-- Whose dead_record an id has: "dead" or "broken", if it has one.
local function grave_of(id)
  local text = call('HGET', DEAD_RECORDS, id)
  return text and (string.byte(text, 1) == UNDECODABLE and 'broken' or 'dead')
end

local function compare_buried(what, id)
  local dead_record = grave_of(id)
  if dead_record == what then return end
  local key, other = unpack(what == 'dead' and { DEAD, BROKEN } or { BROKEN, DEAD })
  if not find(dead_record and 'it is ' .. dead_record or 'no dead record', id) then return end
  local score = call('ZSCORE', key, id)
  call('ZREM', key, id)
  if dead_record then call('ZADD', other, 'NX', score, id) end
end

function compare.dead(id) compare_buried('dead', id) end
function compare.broken(id) compare_buried('broken', id) end

function compare.dead_records(id)
  if call('ZSCORE', DEAD, id) or call('ZSCORE', BROKEN, id) then return end
  if find('neither dead nor broken', id) then call('HDEL', DEAD_RECORDS, id) end
end

-- No job depends on what lies at `schedules`: if that is none of ours, it does not stop an audit.
function compare.ticks(name)
  if redis.pcall('HEXISTS', SCHEDULES, name) == 0 and find('no schedule', name) then call('ZREM', TICKS, name) end
end

local function compare_numbers(jobs, key_of_jobs, entries, where)
  if jobs ~= entries then mention(key_of_jobs .. ' and ' .. where .. ' differ', jobs .. ' and ' .. entries) end
end

-- All at one moment. Every job is in one index, so there are as many of one as of the other.
local function compare_counters()
  local highest = 0
  for priority = 0, 9 do
    local last = call('ZRANGE', READY, string.format('(%.0f', (priority + 1) * PRIORITY_STEP),
      string.format('%.0f', priority * PRIORITY_STEP), 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')
    if last[2] then highest = math.max(highest, tonumber(last[2]) % PRIORITY_STEP) end
  end
  if highest > state.seq and find('seq is behind', string.format('%.0f', highest)) then state.seq = highest end
  local leased = call('HLEN', LEASES)
  compare_numbers(call('HLEN', DATA), 'data', call('ZCARD', READY) + call('ZCARD', SCHEDULED) + leased, 'its indexes')
  compare_numbers(leased, 'leases', call('ZCARD', HELD), 'held')
  compare_numbers(call('HLEN', DEAD_RECORDS), 'dead_records', call('ZCARD', DEAD) + call('ZCARD', BROKEN), 'the dead and broken')
end

local JOBS = { data = true, blocked = true, dead_records = true } -- parts of which each entry is a job
local SCANNED = {
  data = DATA, ready = READY, scheduled = SCHEDULED, leases = LEASES, held = HELD, blocked = BLOCKED,
  meta = META, progress = PROGRESS, last_errors = LAST_ERRORS, dead = DEAD, broken = BROKEN, dead_records = DEAD_RECORDS, ticks = TICKS,
}

-- Some entries of a key. Payloads need not be read; servers that can leave them out do.
local function scan(key, cursor)
  if call('TYPE', key).ok == 'zset' then return call('ZSCAN', key, cursor, 'COUNT', 200), 2 end
  local found = redis.pcall('HSCAN', key, cursor, 'COUNT', 100, 'NOVALUES')
  if found.err then return call('HSCAN', key, cursor, 'COUNT', 100), 2 end
  return found, 1
end

-- A key of a foreign type stops a script while nothing is written.
local function measure_all()
  measure('ZCARD', READY, SCHEDULED, HELD, HOLDERS, DEAD, BROKEN, IDLE, PARKED, OUTBOX, WATCHED, TICKS)
  measure('HLEN', LEASES, DATA, META, BLOCKED, PROGRESS, LAST_ERRORS, DEAD_RECORDS)
  measure('LLEN', INBOX)
end

-- One bounded step: { next cursor or "0", jobs looked at, things amiss, things mended, kind and id of some of them }
local function compare_some(part, cursor)
  if part == 'counters' then
    compare_counters()
    return { '0', 0, amiss, mended, named }
  end
  local found, step = scan(SCANNED[part], cursor)
  for i = 1, #found[2], step do compare[part](found[2][i]) end
  return { found[1], JOBS[part] and #found[2] / step or 0, amiss, mended, named }
end
