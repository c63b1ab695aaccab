-- Inconsistencies between the keys of a queue. Each call compares a bounded number of entries of one part with the other
-- keys, counts and names the problems, and repairs them for `audit`. `inspect` uses the same code and only reports.
--
--   scheduled  entry without a job, or at the wrong place of its job → dropped; its META record lost → rewritten
--   data       job in no index              → ready, with its known priority
--   ready      entry without a job          → dropped; its job is leased too → dropped here
--   leases     lease without a job          → dropped; in no holder's list → the job goes back to the front
--   held       entry without a lease        → dropped; unknown holder → registered as already lost
--   blocked    change behind no running job → becomes a job, or is merged into the waiting one
--   meta, progress, last_errors   entry without a job or lease → dropped
--   dead, broken   entry without a dead record → dropped; dead record of the other kind → moved there
--   dead_records   record that is in neither   → dropped
--   ticks      tick without a schedule      → dropped
--   counters   `seq` behind the ready jobs  → raised; differing numbers of jobs and entries → only reported

local MAX_EXAMPLES = 10 -- problems that one call names: keeps the reply small
local repairing = false
local problems, repaired, examples = 0, 0, {}

-- Counts and names a problem. Returns whether the caller must repair it; never if this is `only_reported`.
local function report(kind, id, only_reported)
  problems = problems + 1
  if #examples < 2 * MAX_EXAMPLES then
    examples[#examples + 1] = kind
    examples[#examples + 1] = id
  end
  local repair = repairing and not only_reported
  if repair then repaired = repaired + 1 end
  return repair
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
  if not member and report('in no index', id) then place(id, m, 0) end
end

function compare.ready(id)
  local leased = is_leased(id)
  if exists(id) and not leased then return end
  if report(leased and 'running too' or 'no job', id) then
    call('ZREM', READY, id)
    if not leased then call('HDEL', META, id) end
  end
end

function compare.scheduled(member)
  local id = string.sub(member, 9)
  local kind = 'no job'
  if exists(id) then
    kind = (is_leased(id) and 'running too') or (call('ZSCORE', READY, id) and 'ready too') or 'wrong place'
  end
  if kind == 'wrong place' then
    local entry, m = scheduled_entry(id)
    if entry == member then return end
    if not entry and #member > 8 then -- the META record is lost, but the run time is known
      if report('no record', id) then
        m.seq = struct.unpack('>I8', member)
        save_or_delete_meta(id, m, true)
      end
      return
    end
  end
  if report(kind, id) then call('ZREM', SCHEDULED, member) end
end

function compare.leases(id)
  local lease = read_lease(call('HGET', LEASES, id))
  if not exists(id) then
    if report('no job', id) then
      end_lease(id, lease)
      remove(id)
    end
  elseif not call('ZSCORE', HELD, lease.holder .. '\0' .. id) and report('no holder', id) then
    end_lease(id, lease)
    local m = read_meta(call('HGET', META, id))
    m.priority = priority_of(lease.score)
    place_again(id, m, 0, lease.score)
  end
end

function compare.held(member)
  local at = string.find(member, '%z') or 1
  local holder, id = string.sub(member, 1, at - 1), string.sub(member, at + 1)
  local text = call('HGET', LEASES, id)
  if not text or read_lease(text).holder ~= holder then
    if report('no lease', id) then call('ZREM', HELD, member) end
  elseif not call('ZSCORE', HOLDERS, holder) and report('holder unknown', id) then
    call('ZADD', HOLDERS, now, holder)
  end
end

function compare.blocked(id)
  if is_leased(id) then return end
  local waits = exists(id)
  if not report(waits and 'its job is not running' or 'no running job', id) then return end
  if not waits then
    start_blocked_job(id, call('HGET', BLOCKED, id))
    return
  end
  local member, m = scheduled_entry(id)
  local score = tonumber(call('ZSCORE', READY, id) or nil)
  local run_at = member and tonumber(call('ZSCORE', SCHEDULED, member)) or 0
  if member then call('ZREM', SCHEDULED, member) end
  if score then m.priority = priority_of(score) end
  call('ZREM', READY, id)
  place_again(id, m, run_at, score)
end

function compare.meta(id)
  if not exists(id) and report('no job', id) then call('HDEL', META, id) end
end

function compare.last_errors(id)
  if not exists(id) and report('no job', id) then call('HDEL', LAST_ERRORS, id) end
end

function compare.progress(id)
  if not is_leased(id) and report('no lease', id) then call('HDEL', PROGRESS, id) end
end

-- The state that the dead record of an id says, "dead" or "broken"; nil without a record.
local function dead_state_of(id)
  local text = call('HGET', DEAD_RECORDS, id)
  return text and (string.byte(text, 1) == UNDECODABLE and 'broken' or 'dead')
end

local function compare_dead_index(what, id)
  local dead_record = dead_state_of(id)
  if dead_record == what then return end
  local key, other = unpack(what == 'dead' and { DEAD, BROKEN } or { BROKEN, DEAD })
  if not report(dead_record and 'it is ' .. dead_record or 'no dead record', id) then return end
  local score = call('ZSCORE', key, id)
  call('ZREM', key, id)
  if dead_record then call('ZADD', other, 'NX', score, id) end
end

function compare.dead(id) compare_dead_index('dead', id) end
function compare.broken(id) compare_dead_index('broken', id) end

function compare.dead_records(id)
  if call('ZSCORE', DEAD, id) or call('ZSCORE', BROKEN, id) then return end
  if report('neither dead nor broken', id) then call('HDEL', DEAD_RECORDS, id) end
end

-- No job depends on the key `schedules`, so a wrong type there does not stop an audit.
function compare.ticks(name)
  if redis.pcall('HEXISTS', SCHEDULES, name) == 0 and report('no schedule', name) then call('ZREM', TICKS, name) end
end

local function compare_numbers(jobs, key_of_jobs, entries, where)
  if jobs ~= entries then report(key_of_jobs .. ' and ' .. where .. ' differ', jobs .. ' and ' .. entries, true) end
end

-- Compares all counts at one moment. Every job is in exactly one index, so the sums must agree.
local function compare_counters()
  local highest = 0
  for priority = 0, 9 do
    local last = call('ZRANGE', READY, string.format('(%.0f', (priority + 1) * PRIORITY_STEP),
      string.format('%.0f', priority * PRIORITY_STEP), 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')
    if last[2] then highest = math.max(highest, tonumber(last[2]) % PRIORITY_STEP) end
  end
  if highest > state.seq and report('seq is behind', string.format('%.0f', highest)) then state.seq = highest end
  local leased = call('HLEN', LEASES)
  compare_numbers(call('HLEN', DATA), 'data', call('ZCARD', READY) + call('ZCARD', SCHEDULED) + leased, 'its indexes')
  compare_numbers(leased, 'leases', call('ZCARD', HELD), 'held')
  compare_numbers(call('HLEN', DEAD_RECORDS), 'dead_records', call('ZCARD', DEAD) + call('ZCARD', BROKEN), 'the dead and broken')
end

local JOBS = { data = true, blocked = true, dead_records = true } -- parts whose entries are counted as jobs
local SCANNED = {
  data = DATA, ready = READY, scheduled = SCHEDULED, leases = LEASES, held = HELD, blocked = BLOCKED,
  meta = META, progress = PROGRESS, last_errors = LAST_ERRORS, dead = DEAD, broken = BROKEN, dead_records = DEAD_RECORDS, ticks = TICKS,
}

-- Some entries of a key, and the distance from one to the next. Skips the payloads where the server supports NOVALUES.
local function scan(key, cursor)
  if call('TYPE', key).ok == 'zset' then return call('ZSCAN', key, cursor, 'COUNT', 200), 2 end
  local found = redis.pcall('HSCAN', key, cursor, 'COUNT', 100, 'NOVALUES')
  if found.err then return call('HSCAN', key, cursor, 'COUNT', 100), 2 end
  return found, 1
end

-- Reads the sizes of all keys, so a key of a wrong type stops the script before it writes anything.
local function measure_all()
  measure('ZCARD', READY, SCHEDULED, HELD, HOLDERS, DEAD, BROKEN, IDLE, PARKED, OUTBOX, WATCHED, TICKS, ENDED)
  measure('HLEN', LEASES, DATA, META, BLOCKED, PROGRESS, LAST_ERRORS, DEAD_RECORDS)
  measure('LLEN', INBOX)
end

-- Compares a bounded part. Returns { next cursor or "0", jobs checked, problems, repaired, kind and id of some problems }.
local function audit_batch(part, cursor)
  if part == 'counters' then
    compare_counters()
    return { '0', 0, problems, repaired, examples }
  end
  local found, stride = scan(SCANNED[part], cursor)
  for i = 1, #found[2], stride do compare[part](found[2][i]) end
  return { found[1], JOBS[part] and #found[2] / stride or 0, problems, repaired, examples }
end
