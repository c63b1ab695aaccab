-- The ledger: what Windlass remembers beside the keys of another system. Part of every script of such a layout.
--
-- KEYS   [1] STATE    hash: `fence`, the last number given out; `swept`, when the layout was last swept;
--                     `caller:<name>` → the last operation of each caller, with its answer
--        [2] RUNS     hash: fence → holder, NUL, token of a job that runs here, with a "!" before it once it was cancelled;
--                     "=" and the SHA-1 of a token → its fence; "@" and that → what the layout notes of its run;
--                     "?" and that → until when it is to be run alone, for it ran in a process that died
--        [3] HOLDERS  zset: holder → when its leases end, in ms
--        [4…] the layout's own
--        the last: HELD  zset: holder, NUL, fence; all scores 0, so what a holder has is a range of names
-- ARGV   of a script that writes: [1] caller  [2] operation number on that caller  [3] the layout's setting; then the script's own.
--        Of one that only reads: [1] the layout's setting; then the script's own.
--
-- A *token* is what a job is to its layout while it runs. The layout's own marks are the truth of who has a job, for its
-- peers know no other; the ledger adds what they do not have: a number that only rises, and whose job it is.
-- The layout follows in its own part: a table of functions, which the scripts behind it call.

local STATE, RUNS, HOLDERS, HELD = KEYS[1], KEYS[2], KEYS[3], KEYS[#KEYS]
local call = redis.call
local layout = {}
local came = 0 -- jobs that became ready in this call
local SETTING = '' -- of the layout, see its own part
local DAY = 86400000
local CALLER_FORGOTTEN = 600000 -- ms after which the last answer to a silent caller may be dropped

local clock = call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now = math.floor(now_us / 1000)

local function whole(number)
  return string.format('%.0f', number)
end

-- The layout says what its keys hold. A key of a foreign type stops a script while nothing is written.
local function expect(kind, ...)
  for i = 1, select('#', ...) do
    local key = select(i, ...)
    local found = call('TYPE', key).ok
    if found ~= kind and found ~= 'none' then
      error(redis.error_reply('WRONGTYPE ' .. key .. ' does not hold what Windlass keeps there'))
    end
  end
end

expect('hash', STATE, RUNS)
expect('zset', HOLDERS, HELD)

-- The ledger of a queue that nobody uses any more goes by itself.
local function keep_for(ms)
  for _, key in ipairs({ STATE, RUNS, HOLDERS, HELD }) do
    call('PEXPIRE', key, whole(ms), 'NX')
    call('PEXPIRE', key, whole(ms), 'GT')
  end
end

-- Returns the recorded answer when this operation was done before; a lower number than the last is refused.
local function open()
  SETTING = ARGV[3]
  local record = call('HGET', STATE, 'caller:' .. ARGV[1])
  if not record then return nil end
  local number, _, answer = string.match(record, '^(%d+) (%d+) (.*)$')
  if tonumber(number) == tonumber(ARGV[2]) then
    -- Written again: who waits for replicas or for the disk waits for the last write of its own connection.
    call('HSET', STATE, 'caller:' .. ARGV[1], number .. ' ' .. whole(now) .. ' ' .. answer)
    return answer
  end
  if tonumber(number) > tonumber(ARGV[2]) then
    return redis.error_reply('STALEOP a later operation of this caller was applied before')
  end
  return nil
end

-- Writes the answer. Called once, after the other writes.
local function close(answer)
  local caller = 'caller:' .. ARGV[1]
  local newcomer = call('HSET', STATE, caller, ARGV[2] .. ' ' .. whole(now) .. ' ' .. answer) == 1
  if newcomer then -- a caller's first call pays for callers that ended without a goodbye: a bounded sample of them
    local some = call('HRANDFIELD', STATE, 20, 'WITHVALUES')
    for i = 1, #some, 2 do
      local heard = some[i] ~= caller and string.sub(some[i], 1, 5) == 'caller:' and string.match(some[i + 1], '^%d+ (%d+)')
      if heard and now - tonumber(heard) > CALLER_FORGOTTEN then call('HDEL', STATE, some[i]) end
    end
  end
  keep_for(DAY)
end

local function pointer(token)
  return '=' .. redis.sha1hex(token)
end

-- Where a layout may note something of a run; it goes with the run.
local function note(token)
  return '@' .. redis.sha1hex(token)
end

local function read_run(fence, text)
  local zero = string.find(text, '\0', 1, true)
  local cancelled = string.sub(text, 1, 1) == '!'
  local holder = string.sub(text, cancelled and 2 or 1, zero - 1)
  return { fence = fence, holder = holder, token = string.sub(text, zero + 1), cancelled = cancelled }
end

-- Where it is marked that a job is one of those that may have killed their process. Where each run has a token of its own,
-- the layout says by same(run) what a job is known by.
local function suspicion(run)
  return '?' .. redis.sha1hex(layout.same and layout.same(run) or run.token)
end

-- A run that was cancelled keeps its lease, but its layout lets it go however its attempt ends. No name begins with "!".
local function cancel_run(run, id)
  run.cancelled = true
  call('HSET', RUNS, run.fence, '!' .. run.holder .. '\0' .. run.token)
  call('PUBLISH', 'windlass:cancel:' .. run.holder, string.match(STATE, '{(.*)}') .. ' ' .. id)
end

-- Somebody else has taken a job away: whoever runs it here stops this attempt, and no later one.
local function drop_run(run, id)
  if string.sub(run.holder, 1, 1) == '.' then return end -- a raw lease: nobody listens
  local message = '!' .. run.fence .. ' ' .. string.match(STATE, '{(.*)}') .. ' ' .. id
  call('PUBLISH', 'windlass:cancel:' .. run.holder, message)
end

-- The running job of a fence, if ledger and layout agree that it still is.
local function run_of(fence)
  local text = call('HGET', RUNS, fence)
  if not text then return nil end
  local run = read_run(fence, text)
  if call('HGET', RUNS, pointer(run.token)) ~= fence then return nil end
  return layout.holds(run) and run or nil
end

local function latest_first(a, b)
  return tonumber(a.fence) > tonumber(b.fence)
end

-- The jobs that run under some index entries, the latest first: put back one after the other, the first is in front.
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

-- What one holder has.
local function runs_of(holder)
  return read_runs(call('ZRANGE', HELD, '[' .. holder .. '\0', '(' .. holder .. '\1', 'BYLEX'))
end

-- All that runs here: for what is rare.
local function all_runs()
  return read_runs(call('ZRANGE', HELD, 0, -1))
end

local function forget(run)
  local text = call('HGET', RUNS, run.fence)
  if text then call('ZREM', HELD, read_run(run.fence, text).holder .. '\0' .. run.fence) end
  call('HDEL', RUNS, run.fence)
  local mark = pointer(run.token)
  if call('HGET', RUNS, mark) == run.fence then call('HDEL', RUNS, mark, note(run.token)) end
end

local function remember(run)
  local mark = pointer(run.token)
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

-- A raw lease has a holder of its own, named after its fence.
local function is_raw(holder)
  return string.sub(holder, 1, 1) == '.'
end

local function dismiss(holder)
  call('ZREM', HOLDERS, holder)
  call('ZREMRANGEBYLEX', HELD, '[' .. holder .. '\0', '(' .. holder .. '\1') -- entries with no run behind them
  if layout.retire then layout.retire(holder) end
end

-- A named holder's leases last as long as it does.
local function deadline(holder, ends)
  return math.max(ends, not is_raw(holder) and tonumber(call('ZSCORE', HOLDERS, holder) or 0) or 0)
end

-- A holder has time until then, or for as long as it had. What it does not hold any more is forgotten.
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

-- META of a lease with the mark SUSPECT, so that its worker runs it alone (see storage/packing.py).
local function as_suspect(meta)
  if meta == '' then return struct.pack('>BBBI4I4I4I4I8I8I8', 2, 1, 5, 10, 3, 0, 0, 2000, 300000, 0) end
  local marks = string.byte(meta, 2)
  return string.sub(meta, 1, 1) .. string.char(marks % 2 == 0 and marks + 1 or marks) .. string.sub(meta, 3)
end

local function describe(run)
  local id, data, meta = layout.describe(run)
  if tonumber(call('HGET', RUNS, suspicion(run)) or 0) > now then meta = as_suspect(meta) end
  return id, data, meta
end

-- What the queue is called in messages to other Windlass programs.
local CHANNEL = 'windlass:wake:' .. string.match(STATE, '^windlass:(.*):state$')

local function announce()
  if came > 0 then
    call('PUBLISH', CHANNEL, came)
    if layout.announce then layout.announce(came) end
  end
end

-- A job as the reading scripts describe it; foreign/layout.py reads it.
local function row(state, id, data, more)
  more = more or {}
  return {
    state, id, data, more.meta or '', more.run_at or '', more.holder or '', more.fence or '', more.progress or '',
    more.message or '', more.died_at or '', more.cancelled and 1 or 0,
  }
end
