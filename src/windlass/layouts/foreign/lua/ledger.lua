-- The ledger: what Windlass remembers beside the keys of another system. Part of every script of such a layout.
--
-- KEYS   [1] STATE    hash: `fence`, the last number given out; `swept`, when the layout was last swept;
--                     `lane:<name>` → the last operation of each lane, with its answer
--        [2] RUNS     hash: fence → holder, NUL, token of a job that runs here, with a "!" before it once it was cancelled;
--                     "=" and the SHA-1 of a token → its fence; "@" and that → what the layout notes of its run
--        [3] HOLDERS  zset: holder → when its leases end, in ms
--        [4…] the layout's own
-- ARGV   of a script that writes: [1] lane  [2] operation number on that lane  [3] the layout's setting; then the script's own.
--        Of one that only reads: [1] the layout's setting; then the script's own.
--
-- A *token* is what a job is to its layout while it runs. The layout's own marks are the truth of who has a job, for its
-- peers know no other; the ledger adds what they do not have: a number that only rises, and whose job it is.
-- The layout follows in its own part: a table of functions, which the scripts behind it call.

local STATE, RUNS, HOLDERS = KEYS[1], KEYS[2], KEYS[3]
local call = redis.call
local layout = {}
local came = 0 -- jobs that became ready in this call
local SETTING = '' -- of the layout, see its own part
local DAY = 86400000
local LANE_FORGOTTEN = 600000 -- ms after which the last answer to a silent lane may be dropped

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
expect('zset', HOLDERS)

-- The ledger of a queue that nobody uses any more goes by itself.
local function keep_for(ms)
  for _, key in ipairs({ STATE, RUNS, HOLDERS }) do
    call('PEXPIRE', key, whole(ms), 'NX')
    call('PEXPIRE', key, whole(ms), 'GT')
  end
end

-- Returns the recorded answer when this operation was done before; a lower number than the last is refused.
local function open()
  SETTING = ARGV[3]
  local record = call('HGET', STATE, 'lane:' .. ARGV[1])
  if not record then return nil end
  local number, _, answer = string.match(record, '^(%d+) (%d+) (.*)$')
  if tonumber(number) == tonumber(ARGV[2]) then return answer end
  if tonumber(number) > tonumber(ARGV[2]) then
    return redis.error_reply('STALEOP a later operation of this lane was applied before')
  end
  return nil
end

-- Writes the answer. Called once, after the other writes.
local function close(answer)
  local lane = 'lane:' .. ARGV[1]
  local newcomer = call('HSET', STATE, lane, ARGV[2] .. ' ' .. whole(now) .. ' ' .. answer) == 1
  if newcomer then -- a lane's first call pays for lanes that ended without a goodbye: a bounded sample of them
    local some = call('HRANDFIELD', STATE, 20, 'WITHVALUES')
    for i = 1, #some, 2 do
      local heard = some[i] ~= lane and string.sub(some[i], 1, 5) == 'lane:' and string.match(some[i + 1], '^%d+ (%d+)')
      if heard and now - tonumber(heard) > LANE_FORGOTTEN then call('HDEL', STATE, some[i]) end
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

-- A run that was cancelled keeps its lease, but its layout lets it go however its attempt ends. No name begins with "!".
local function cancel_run(run, id)
  run.cancelled = true
  call('HSET', RUNS, run.fence, '!' .. run.holder .. '\0' .. run.token)
  call('PUBLISH', 'windlass:cancel:' .. run.holder, string.match(STATE, '{(.*)}') .. ' ' .. id)
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

-- All jobs that run here, or those of one holder, the latest first: put back one after the other, the first is in front.
local function runs_of(holder)
  local found = {}
  local all = call('HGETALL', RUNS)
  for i = 1, #all, 2 do
    if string.find(all[i], '^%d') then
      local run = read_run(all[i], all[i + 1])
      if not holder or run.holder == holder then found[#found + 1] = run end
    end
  end
  table.sort(found, latest_first)
  return found
end

local function forget(run)
  call('HDEL', RUNS, run.fence)
  local mark = pointer(run.token)
  if call('HGET', RUNS, mark) == run.fence then call('HDEL', RUNS, mark, note(run.token)) end
end

local function remember(run)
  local mark = pointer(run.token)
  local older = call('HGET', RUNS, mark)
  if older then
    local text = layout.lost and call('HGET', RUNS, older)
    if text then layout.lost(read_run(older, text)) end
    call('HDEL', RUNS, older)
  end
  call('HSET', RUNS, run.fence, run.holder .. '\0' .. run.token, mark, run.fence)
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
  if layout.retire then layout.retire(holder) end
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
