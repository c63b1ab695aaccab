-- Inconsistencies of a Queasy queue beside its ledger. Each part exists twice, for jobs and for failure jobs.
--
--   jobs                    hash in no index → waiting, or stalled; blocked without a running job → waiting
--   waiting, fail_waiting   entry without a hash → dropped; running too and not blocked → blocked
--   active, fail_active     entry without a hash → dropped, and the job it blocks waits; locked by another worker → dropped

local function compare_waiting_hash(queue, id, key)
  local score = score_of(queue, id)
  local runs = is_hash(active_job(queue, id))
  if score and (score >= 0 or runs) then return end
  if not report(score and 'blocked by nothing' or 'in no index', queue.prefix .. id) then return end
  if not score then call('ZADD', queue.waiting, read_run_at(key), id) end
  if runs then
    add_to_waiting(queue, id, run_time(call('ZSCORE', queue.waiting, id)), true)
  else
    unblock(queue, id)
  end
end

local function compare_active_hash(queue, id, key)
  if call('ZSCORE', queue.active, id .. ':' .. (call('HGET', key, 'lockedBy') or '')) then return end
  for _, member in ipairs(call('ZRANGE', queue.active, 0, -1)) do
    if string.sub(member, 1, #id + 1) == id .. ':' and split(queue, member) == id then return end
  end
  if report('no worker', queue.prefix .. id) then on_stall(queue, id, 'stalled') end
end

function compare.jobs(cursor)
  local pattern = string.gsub(string.match(JOBS.waiting, '^(.*}):'), '[%[%]%?%*\\]', '\\%0') .. '*_job:*'
  local found = call('SCAN', cursor, 'MATCH', pattern, 'COUNT', 200, 'TYPE', 'hash')
  for _, key in ipairs(found[2]) do
    for _, queue in ipairs(QUEUES) do
      local waits, runs = waiting_job(queue, ''), active_job(queue, '')
      if string.sub(key, 1, #waits) == waits then
        compare_waiting_hash(queue, string.sub(key, #waits + 1), key)
      elseif string.sub(key, 1, #runs) == runs then
        compare_active_hash(queue, string.sub(key, #runs + 1), key)
      end
    end
  end
  return found[1]
end

local function compare_waiting(queue, cursor)
  local found = call('ZSCAN', queue.waiting, cursor, 'COUNT', 200)
  for i = 1, #found[2], 2 do
    local id, score = found[2][i], tonumber(found[2][i + 1])
    if score == tonumber(PLACEHOLDER_SCORE) then -- a placeholder, see layout.py
    elseif not is_hash(waiting_job(queue, id)) then
      if report('no job', queue.prefix .. id) then call('ZREM', queue.waiting, id) end
    elseif score > 1 and is_hash(active_job(queue, id)) and report('running too', queue.prefix .. id) then
      add_to_waiting(queue, id, run_time(score), true)
    end
  end
  return found[1]
end

local function compare_active(queue, cursor)
  local found = call('ZSCAN', queue.active, cursor, 'COUNT', 200)
  for i = 1, #found[2], 2 do
    local member = found[2][i]
    local id, worker = split(queue, member)
    local key = active_job(queue, id)
    if not is_hash(key) then
      if report('no job', queue.prefix .. id) then
        call('ZREM', queue.active, member)
        unblock(queue, id)
      end
    else
      local locked_by = call('HGET', key, 'lockedBy')
      if locked_by and locked_by ~= worker and call('ZSCORE', queue.active, id .. ':' .. locked_by)
        and report('locked by another worker', queue.prefix .. id) then
        call('ZREM', queue.active, member)
      end
    end
  end
  return found[1]
end

function compare.waiting(cursor) return compare_waiting(JOBS, cursor) end
function compare.fail_waiting(cursor) return compare_waiting(FAILURES, cursor) end
function compare.active(cursor) return compare_active(JOBS, cursor) end
function compare.fail_active(cursor) return compare_active(FAILURES, cursor) end
