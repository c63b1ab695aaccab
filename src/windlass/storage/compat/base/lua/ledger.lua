-- The ledger: the records that Windlass keeps beside the keys of another system. Part of every script of such a layout.
--
-- KEYS   [1] STATE    hash: `fence`, the last fence; `swept`, time of the last sweep;
--                     `caller:<name>` → the last operation of each caller, with its answer
--        [2] RUNS     hash: fence → holder, NUL, token of a running job, with a leading "!" once it was cancelled;
--                     "=" and the SHA-1 of a token → its fence; "@" and the SHA-1 → the layout's note on the run;
--                     "?" and the SHA-1 → until when the job is a suspect and runs alone, because its process died
--        [3] HOLDERS  zset: holder → when its leases end, in ms
--        [4…] the layout's own
--        the last: HELD  zset: holder, NUL, fence; all scores 0, so the runs of a holder are a range of names
-- ARGV   of a script that writes: [1] caller  [2] operation number of that caller  [3] the layout's setting; then the script's own.
--        Of one that only reads: [1] the layout's setting; then the script's own.
--
-- A *token* identifies a running job to its layout. The layout's own keys decide who has a job, because its peers know no
-- other keys. The ledger adds a fence that only rises, and the holder.
-- The layout's own part follows: it fills the table `layout` with functions that the scripts call.

local STATE, RUNS, HOLDERS, HELD = KEYS[1], KEYS[2], KEYS[3], KEYS[#KEYS]
local call = redis.call
local layout = {}
local made_ready = 0 -- jobs that became ready in this call
local SETTING = '' -- a setting of the layout, see its own part
local DAY_MS = 86400000

local clock = call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now = math.floor(now_us / 1000)

local function whole(number)
  return string.format('%.0f', number)
end

-- Checks the types of keys, so that a wrong type stops the script before it writes anything.
local function expect(kind, ...)
  for i = 1, select('#', ...) do
    local key = select(i, ...)
    local found = call('TYPE', key).ok
    if found ~= kind and found ~= 'none' then
      error(redis.error_reply('WRONGTYPE ' .. key .. ' has a wrong type'))
    end
  end
end

expect('hash', STATE, RUNS)
expect('zset', HOLDERS, HELD)

-- Lets the ledger expire, not earlier than in `ms`, so that an unused queue leaves nothing behind.
local function keep_for(ms)
  for _, key in ipairs({ STATE, RUNS, HOLDERS, HELD }) do
    call('PEXPIRE', key, whole(ms), 'NX')
    call('PEXPIRE', key, whole(ms), 'GT')
  end
end

-- Returns the recorded answer if this operation was done before, an error reply if a later one was, else nil.
local function begin_op()
  SETTING = ARGV[3]
  local record = call('HGET', STATE, 'caller:' .. ARGV[1])
  if not record then return nil end
  local number, _, answer = string.match(record, '^(%d+) (%d+) (.*)$')
  if tonumber(number) == tonumber(ARGV[2]) then
    -- Write it again: WAIT and WAITAOF wait for the last write of their own connection.
    call('HSET', STATE, 'caller:' .. ARGV[1], number .. ' ' .. whole(now) .. ' ' .. answer)
    return answer
  end
  if tonumber(number) > tonumber(ARGV[2]) then
    return redis.error_reply('STALEOP a later operation of this caller was applied before')
  end
  return nil
end

-- Writes the answer. A script calls it once, after its other writes.
local function commit_op(answer)
  local caller = 'caller:' .. ARGV[1]
  local newcomer = call('HSET', STATE, caller, ARGV[2] .. ' ' .. whole(now) .. ' ' .. answer) == 1
  if newcomer then -- drop callers that ended without unregistering, from a bounded sample
    local some = call('HRANDFIELD', STATE, 20, 'WITHVALUES')
    for i = 1, #some, 2 do
      local heard = some[i] ~= caller and string.sub(some[i], 1, 5) == 'caller:' and string.match(some[i + 1], '^%d+ (%d+)')
      if heard and now - tonumber(heard) > CALLER_TTL_MS then call('HDEL', STATE, some[i]) end
    end
  end
  keep_for(DAY_MS)
end

-- Fields of STATE that an idle queue does not need. Layouts have more fields; these are notes about jobs or workers.
local DISPENSABLE = { fence = true, swept = true, failure_handler = true }
local MAX_FIELDS = 30 -- with more, many callers are active: reading them all would take too long

-- Whether the queue has no job, of whichever program, and no holder of Windlass.
local function is_idle()
  if call('EXISTS', HOLDERS, HELD) > 0 then return false end
  local counts = layout.counts()
  return counts[1] + counts[2] + counts[3] + counts[4] == 0
end

-- Deletes the ledger of an idle queue, so that its peers find no key that is not theirs; returns false if it has to stay. An
-- answer that its caller may still ask for delays this by some minutes; `answered` is a caller that will not ask.
local function delete_ledger(answered)
  if call('HLEN', STATE) > MAX_FIELDS then return false end
  if answered then call('HDEL', STATE, 'caller:' .. answered) end
  local fields, waits = call('HGETALL', STATE), false
  for i = 1, #fields, 2 do
    local is_caller = string.sub(fields[i], 1, 7) == 'caller:'
    local heard = is_caller and string.match(fields[i + 1], '^%d+ (%d+)')
    if not is_caller and not DISPENSABLE[fields[i]] then return false end
    waits = waits or heard and now - tonumber(heard) <= CALLER_TTL_MS
  end
  if waits then call('PEXPIRE', STATE, CALLER_TTL_MS) else call('DEL', STATE, RUNS) end
  return true
end

local function fence_field(token)
  return '=' .. redis.sha1hex(token)
end

-- The field of RUNS in which a layout may keep a note on a run. It is deleted with the run.
local function note_field(token)
  return '@' .. redis.sha1hex(token)
end

local function read_run(fence, text)
  local zero = string.find(text, '\0', 1, true)
  local cancelled = string.sub(text, 1, 1) == '!'
  local holder = string.sub(text, cancelled and 2 or 1, zero - 1)
  return { fence = fence, holder = holder, token = string.sub(text, zero + 1), cancelled = cancelled }
end

-- The field of RUNS that marks a job as a suspect. A layout in which each run has its own token identifies the job by
-- same(run).
local function suspect_field(run)
  return '?' .. redis.sha1hex(layout.same and layout.same(run) or run.token)
end

-- Cancels a run. It keeps its lease, and its layout removes the job however the attempt ends. No holder's name begins with "!".
local function cancel_run(run, id)
  run.cancelled = true
  call('HSET', RUNS, run.fence, '!' .. run.holder .. '\0' .. run.token)
  call('PUBLISH', 'windlass:cancel:' .. run.holder, string.match(STATE, '{(.*)}') .. ' ' .. id)
end

-- Tells the holder of a run that a peer took the job: it stops this attempt, and no later one.
local function drop_run(run, id)
  if string.sub(run.holder, 1, 1) == '.' then return end -- a raw lease has no subscription
  local message = '!' .. run.fence .. ' ' .. string.match(STATE, '{(.*)}') .. ' ' .. id
  call('PUBLISH', 'windlass:cancel:' .. run.holder, message)
end

-- The run with this fence, if ledger and layout agree that it still has its job.
local function run_of(fence)
  local text = call('HGET', RUNS, fence)
  if not text then return nil end
  local run = read_run(fence, text)
  if call('HGET', RUNS, fence_field(run.token)) ~= fence then return nil end
  return layout.holds(run) and run or nil
end

local function latest_first(a, b)
  return tonumber(a.fence) > tonumber(b.fence)
end

-- The runs of some HELD members, the latest first: pushed to the front one after the other, the earliest ends in front.
local function read_runs(members)
  local found = {}
  for _, member in ipairs(members) do
    local fence = string.match(member, '%d+$')
    local text = call('HGET', RUNS, fence)
    if text then found[#found + 1] = read_run(fence, text) end
  end
  table.sort(found, latest_first)
  return found
end

-- The runs of one holder.
local function runs_of(holder)
  return read_runs(call('ZRANGE', HELD, '[' .. holder .. '\0', '(' .. holder .. '\1', 'BYLEX'))
end

-- All runs. Slow: only for rare operations.
local function all_runs()
  return read_runs(call('ZRANGE', HELD, 0, -1))
end

local function forget(run)
  local text = call('HGET', RUNS, run.fence)
  if text then call('ZREM', HELD, read_run(run.fence, text).holder .. '\0' .. run.fence) end
  call('HDEL', RUNS, run.fence)
  local mark = fence_field(run.token)
  if call('HGET', RUNS, mark) == run.fence then call('HDEL', RUNS, mark, note_field(run.token)) end
end

local function remember(run)
  local mark = fence_field(run.token)
  local older = call('HGET', RUNS, mark)
  local text = older and call('HGET', RUNS, older)
  if text then
    local before = read_run(older, text)
    if layout.lost then layout.lost(before) end
    call('HDEL', RUNS, older)
    call('ZREM', HELD, before.holder .. '\0' .. older)
  end
  call('HSET', RUNS, run.fence, run.holder .. '\0' .. run.token, mark, run.fence)
  call('ZADD', HELD, 0, run.holder .. '\0' .. run.fence)
end

local function is_known(holder)
  local ends = call('ZSCORE', HOLDERS, holder)
  return ends and tonumber(ends) > now and (not layout.knows or layout.knows(holder))
end

-- A raw lease has a holder of its own, a dot and its fence.
local function is_raw(holder)
  return string.sub(holder, 1, 1) == '.'
end

local function dismiss(holder)
  call('ZREM', HOLDERS, holder)
  call('ZREMRANGEBYLEX', HELD, '[' .. holder .. '\0', '(' .. holder .. '\1') -- entries without a run
  if layout.unregister then layout.unregister(holder) end
end

-- When a lease ends: a named holder's lease lasts at least until the holder's deadline.
local function deadline(holder, ends)
  return math.max(ends, not is_raw(holder) and tonumber(call('ZSCORE', HOLDERS, holder) or 0) or 0)
end

-- Extends a holder and its leases to `ends`, never shortening them, and forgets the runs it lost.
local function keep_alive(holder, ends)
  call('ZADD', HOLDERS, 'GT', whole(ends), holder)
  for _, run in ipairs(runs_of(holder)) do
    if layout.holds(run) then
      layout.extend(run, ends, true)
    else
      forget(run)
      if layout.lost then layout.lost(run) end
    end
  end
end

-- record META

-- A META record with the implied limits.
local function limits_record(marks, priority)
  return pack_meta({ version = META_VERSION, marks = marks, priority = priority, max_failures = IMPLIED_MAX_FAILURES,
    max_stalls = IMPLIED_MAX_STALLS, failures = 0, stalls = 0, min_backoff = IMPLIED_MIN_BACKOFF,
    max_backoff = IMPLIED_MAX_BACKOFF, seq = 0, extras_length = 0 })
end

-- A META record with the mark SUSPECT, so that the worker runs the job alone.
local function as_suspect(meta)
  if meta == '' then return limits_record(SUSPECT, IMPLIED_PRIORITY) end
  local marks = string.byte(meta, 2)
  return string.sub(meta, 1, 1) .. string.char(marks % 2 == 0 and marks + 1 or marks) .. string.sub(meta, 3)
end

local function describe(run)
  local id, data, meta = layout.describe(run)
  if tonumber(call('HGET', RUNS, suspect_field(run)) or 0) > now then meta = as_suspect(meta) end
  return id, data, meta
end

-- Where Windlass programs announce work to each other.
local CHANNEL = 'windlass:wake:' .. string.match(STATE, '^windlass:(.*):state$')

local function announce()
  if made_ready > 0 then
    call('PUBLISH', CHANNEL, made_ready)
    if layout.announce then layout.announce(made_ready) end
  end
end

-- A job as the reading scripts describe it; base/layout.py reads it.
local function row(state, id, data, more)
  more = more or {}
  return {
    state, id, data, more.meta or '', more.run_at or '', more.holder or '', more.fence or '', more.progress or '',
    more.message or '', more.died_at or '', more.cancelled and 1 or 0,
  }
end
