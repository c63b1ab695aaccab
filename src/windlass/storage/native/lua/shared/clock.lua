-- The clock. `now` (ms) is for leases: it never runs back, and on the word of the server's clock alone it moves at most
-- STEP_CAP a call. `due` (ms) is for run times: the server's clock, less a jump that is not believed yet.
--
-- Both follow what a caller vouches for. It may have heard the clock before, and adds what its own monotonic clock says has
-- passed since: that much it must be by now, however long the answer was under way, or the call is. It also names its machine
-- and that machine's uptime, so others on the same machine can go by what it heard. What the server's clock did beyond that is
-- a jump. What was heard in another `frame` says nothing of `now`, and before another `belief` nothing of `due`.

local STEP_CAP = 1000 -- ms that the lease clock follows the server's clock on its word alone
local DOUBT = 100 -- ms by which two clocks may differ that both are right
local TOLERANCE = 2000 -- ms of disagreement that is not yet a jump of the server's clock
local BELIEVE_AFTER = 300000 -- ms after which a jumped clock is believed
local UNDER_WAY = 60000 -- ms that a call may be under way
local SILENCE = 5000 -- ms without any sign of life that make named holders worth a grace

local wall, wall_us, now, due
local sure -- `now` without what rests on the server's word alone: all that is told while nothing is written
local state = { -- with a place for all that is known of a queue: it would grow six times
  seq = 0, fence = 0, clock = false, wall = false, step = 0, epoch = 0, paused = false, failure_handler = false, witness = '',
  last_witness = '', skew = 0, skew_until = 0, belief = 0, leap = 0, behind = 0, frame = 0, grace = 0, grace_from = 0,
  jumped = false, silent = false, closed = false, newcomer = false,
}
local caller_field

local function wall_clock()
  local time = call('TIME')
  wall_us = time[1] * 1000000 + time[2]
  wall = math.floor(wall_us / 1000)
end

-- WITNESS, what a caller vouches for: now and its frame, due and its belief, the uptime of its machine; then that one's name.
local WITNESS_FORMAT = '>I8I4I8I4I8'
local WITNESS_HEAD = 32

local function claim(said)
  local machine = string.sub(said, WITNESS_HEAD + 1)
  if machine == '' or machine == '-' then return { now = 0, due = 0, uptime = 0 } end
  local heard_now, frame, heard_due, belief, uptime = struct.unpack(WITNESS_FORMAT, said)
  return {
    now = frame == state.frame and heard_now or 0,
    due = belief == state.belief and heard_due or 0,
    machine = machine, uptime = uptime,
  }
end

-- What `now` and `due` must be by now, by what the caller heard or by what was heard on its machine; 0 where nobody can tell.
-- Only what was heard counts. The time between two calls is not the time between their uptimes: the first may have been
-- longer under way.
local function vouched(said)
  local mine = claim(said)
  state.witness = said
  if mine.now > 0 and mine.due > 0 and state.wall and mine.now + DOUBT > state.clock + wall - state.wall then
    return mine.now, mine.due -- its own word is enough, as it is for most
  end
  local last = claim(state.last_witness)
  state.witness = state.last_witness
  if mine.machine and mine.machine == last.machine then
    local passed = mine.uptime - last.uptime - 1 -- both are rounded
    if last.now > 0 then last.now = last.now + passed end
    if last.due > 0 then last.due = last.due + passed end
    if mine.now > last.now + 1 or mine.due > 0 and last.due == 0 then state.witness = said end
    return math.max(mine.now, last.now), math.max(mine.due, last.due)
  end
  if mine.now > 0 then state.witness = said end
  return mine.now, mine.due
end

-- What a caller is told. To vouch with the next time: now and its frame, due and how often a jump was believed. To know what
-- came first, and whether the server has forgotten anything since: the queue's epoch, and the number of the step. Of `now`
-- only what is sure, unless it was written (`closed`): then it is so.
local function reading()
  return { state.closed and now or sure, state.frame, due, state.belief, state.epoch, state.step }
end

local function advance_clock(said)
  wall_clock()
  local heard_now, heard_due = vouched(said)
  if not (state.clock and state.wall) then
    now, due = math.max(wall, heard_now), wall
    sure = now
  else
    local moved = wall - state.wall
    -- Nobody is believed beyond what the server's clock has moved, and what of that was not followed before; unless that
    -- clock was put back. Then nobody can tell how far it is behind, and who has heard it before has no say any more.
    local surplus = heard_now - (state.clock + moved + state.behind)
    if moved >= 0 and surplus > 0 then heard_now = heard_now - surplus end
    if moved < 0 or surplus > DOUBT then state.frame, state.jumped = state.frame + 1, true end
    -- Nor does anybody's word set run times ahead of the server's clock, but for what that was put back.
    if moved >= 0 then heard_due = math.min(heard_due, wall - math.min(0, state.skew)) end
    sure = math.max(state.clock, heard_now)
    now = math.max(sure, math.min(state.clock + moved, sure + STEP_CAP))
    local behind = moved < 0 and 0 or math.max(0, state.behind + moved - (now - state.clock))
    if behind ~= state.behind then state.behind, state.jumped = behind, true end
    local skew, leap = state.skew, 0
    if heard_due > 0 then
      -- It does not run back for a call that was long under way; what it leapt ahead when nobody could tell may be taken back.
      local off = wall - skew - math.max(heard_due, state.wall - skew - state.leap)
      if math.abs(off) > TOLERANCE then skew = skew + off end
    elseif moved < -STEP_CAP then
      skew = skew + moved
    elseif moved > TOLERANCE then
      leap = moved
      if skew < 0 then skew = math.min(0, skew + moved) end
    end
    local change = skew - state.skew
    if change ~= 0 then
      if state.skew == 0 or math.abs(change) > UNDER_WAY then state.skew_until = now + BELIEVE_AFTER end
      if change > 0 and state.leap > 0 then state.belief = state.belief + 1 end -- nobody is to vouch for the leap
      state.skew, state.jumped = skew, true
    elseif skew ~= 0 and now > state.skew_until then
      state.skew, state.belief, state.jumped = 0, state.belief + 1, true
    end
    if leap ~= state.leap then state.leap, state.jumped = leap, true end
    if now - state.clock > SILENCE then
      -- Holders that were alive when the silence began get time to beat; those that were late before it do not.
      state.grace, state.grace_from, state.silent = now + SILENCE, state.clock, true
    end
    due = wall - state.skew
  end
end

-- The end of a lease of so many ms. While the clock is behind it may catch up at any time, when somebody comes who has heard
-- it before: so much longer is the lease. It is never twice as long: rather the clock stays where it is, and who has heard
-- it before has no say.
local function lease_end(ms)
  if state.behind > ms then state.behind, state.frame, state.jumped = 0, state.frame + 1, true end
  return now + ms + state.behind
end

-- A run time so many ms from now: never early, whichever way the server's clock is put right later.
local function from_now(ms)
  if ms == 0 then return due end -- at once: what the server's clock has leapt ahead is no reason to wait
  -- While a jump is doubted, `due` may be behind by what a request took on its way, and catch up later.
  return math.max(wall, due) + ms + (ms > 0 and state.skew ~= 0 and TOLERANCE or 0)
end

-- DRIFT: what is other than 0 only after the clock has jumped, was behind, or stood still.
local function read_drift(text)
  local drift = {}
  for number in string.gmatch(text, '%S+') do drift[#drift + 1] = tonumber(number) end
  state.skew, state.skew_until, state.belief, state.leap, state.behind, state.frame, state.grace, state.grace_from = unpack(drift)
end

local function write_drift()
  return string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f', state.skew, state.skew_until, state.belief, state.leap,
    state.behind, state.frame, state.grace, state.grace_from)
end

-- CORE: format, marks, seq, fence, clock, wall, step, epoch. One field, for all of it is read and written at each call; and short:
-- a value of more than 64 bytes would make the server keep the state in another, larger way. No clock (0): the queue counts as new.
local CORE_FORMAT = '>BBI8I8I8I8I8I8'
local CORE_SIZE = 50
local VERSION = 6
local PAUSED_MARK, FAILURE_HANDLER_MARK = 1, 2

local function write_core(clock)
  return struct.pack(CORE_FORMAT, VERSION, (state.paused and PAUSED_MARK or 0) + (state.failure_handler and FAILURE_HANDLER_MARK or 0),
    state.seq, state.fence, clock, wall, state.step, state.epoch)
end

local function read_state(extra)
  local f = read('HMGET', STATE, 'core', 'witness', 'drift', extra or 'caller')
  local core = f[1]
  if core and (#core ~= CORE_SIZE or string.byte(core) ~= VERSION) or not core and call('HMGET', STATE, 'format')[1] then
    error(redis.error_reply('FORMAT ' .. STATE .. ' was written by another version of Windlass'))
  end
  if core then
    local _, marks, clock, last_wall
    _, marks, state.seq, state.fence, clock, last_wall, state.step, state.epoch = struct.unpack(CORE_FORMAT, core)
    if clock > 0 then state.clock, state.wall = clock, last_wall end
    state.paused = marks % 2 == PAUSED_MARK
    state.failure_handler = marks >= FAILURE_HANDLER_MARK and call('HMGET', STATE, 'failure_handler')[1]
  end
  state.last_witness = f[2] or ''
  if f[3] then read_drift(f[3]) end
  return f[4]
end
