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
local state = {}
local lane_field

local function wall_clock()
  local time = call('TIME')
  wall = time[1] * 1000 + math.floor(time[2] / 1000)
  wall_us = time[1] * 1000000 + time[2]
end

local SAID = '^(%d+) (%d+) (%d+) (%d+) (%S+) (%d+)$'

local function claim(said)
  local heard_now, frame, heard_due, belief, machine, uptime = string.match(said, SAID)
  if not machine or machine == '-' then return { now = 0, due = 0, uptime = 0 } end
  return {
    now = tonumber(frame) == state.frame and tonumber(heard_now) or 0,
    due = tonumber(belief) == state.belief and tonumber(heard_due) or 0,
    machine = machine, uptime = tonumber(uptime),
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
  return string.format('%.0f %.0f %.0f %.0f %s %.0f', state.closed and now or sure, state.frame, due, state.belief,
    state.epoch or '0', state.step)
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

-- What is other than 0 only after the clock has jumped, was behind, or stood still.
local function read_drift(text)
  if not text then return 0, 0, 0, 0, 0, 0, 0, 0 end
  local drift = {}
  for number in string.gmatch(text, '%S+') do drift[#drift + 1] = tonumber(number) end
  return unpack(drift)
end

local function write_drift()
  return string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f', state.skew, state.skew_until, state.belief, state.leap,
    state.behind, state.frame, state.grace, state.grace_from)
end

local function read_state(extra)
  local f = read('HMGET', STATE, 'seq', 'fence', 'clock', 'wall', 'drift', 'paused', 'witness', 'format', 'catcher', 'epoch',
    'step', extra or 'lane')
  if f[8] and f[8] ~= '4' then
    error(redis.error_reply('FORMAT ' .. STATE .. ' was written by another version of Windlass'))
  end
  state.known = f[3] and true or false
  state.seq = tonumber(f[1]) or 0
  state.fence = tonumber(f[2]) or 0
  state.clock = tonumber(f[3])
  state.wall = tonumber(f[4])
  state.paused = f[6] == '1'
  state.last_witness = f[7] or ''
  state.catcher = f[9]
  state.epoch = f[10]
  state.step = tonumber(f[11]) or 0
  state.skew, state.skew_until, state.belief, state.leap, state.behind, state.frame, state.grace, state.grace_from =
    read_drift(f[5])
  return f[12]
end
