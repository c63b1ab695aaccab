-- The clock. `now` (ms) is for leases: it never runs back, and on the word of the server's clock alone it moves at most
-- STEP_CAP a call. `due` (ms) is for run times: the server's clock, less a jump that is not believed yet.
--
-- Both follow what a caller vouches for. It may have heard the clock before, and adds what its own monotonic clock says has
-- passed since. And it names its machine and that machine's uptime: when the last call came from the same machine, the
-- difference is the time that truly passed, whoever made that call. What the server's clock did beyond that is a jump.

local STEP_CAP = 1000 -- ms that the lease clock follows the server's clock on its word alone
local LOOSE = 600000 -- ms by which the clock is said to be ahead of an anchor that tells nothing of it
local DOUBT = 100 -- ms by which a jump that is doubted may be wrong
local TOLERANCE = 2000 -- ms of disagreement that is not yet a jump of the server's clock
local BELIEVE_AFTER = 300000 -- ms after which a jumped clock is believed
local SILENCE = 5000 -- ms without any sign of life that make named holders worth a grace

local wall, wall_us, now, due
-- What a caller is told. To vouch with the next time: now, due, how often a jump was believed. To know what came first, and
-- whether the server has forgotten anything since: the queue's epoch, and the number of the step (see operations.lua).
local reading
local state = {}
local lane_field

local function wall_clock()
  local time = call('TIME')
  wall = time[1] * 1000 + math.floor(time[2] / 1000)
  wall_us = time[1] * 1000000 + time[2]
end

-- What `now` and `due` had certainly reached when the caller made this call; 0 where it cannot tell. That may be a while ago:
-- a call waits for a connection, or is repeated. What it says is therefore never taken for the time of this step. The state
-- keeps an anchor: a machine's uptime, with what both had certainly reached by then (as how far the last step was ahead of that).
-- It is taken from what a caller has heard, and only when that is more than was known: a line from there is never ahead of
-- the truth, however calls are delayed. Uptimes are rounded down, so an anchor is put one later. Until somebody has heard
-- anything there is a loose one, the first call's: it tells nothing of `now`, and of `due` only that it has leapt ahead.
local function vouched(said)
  local heard_now, heard_due, belief, machine, uptime = string.match(said, '^(%d+) (%d+) (%d+) (%S+) (%d+)$')
  if not machine then heard_now, heard_due, belief, machine, uptime = 0, 0, 0, '-', 0 end
  heard_now, heard_due, uptime = tonumber(heard_now), tonumber(heard_due), tonumber(uptime)
  if tonumber(belief) ~= state.belief then heard_due = 0 end
  local own_now, own_due = heard_now, heard_due
  local known, anchor, ahead, due_ahead = string.match(state.last_witness, '^(%S+) (%d+) (%-?%d+) (%-?%d+)$')
  if known and state.clock and state.wall then
    state.machine, state.anchor = known, tonumber(anchor)
    state.certain_now, state.certain_due = state.clock - ahead, state.wall - state.skew - due_ahead
    state.loose = tonumber(ahead) >= LOOSE
  end
  state.same = machine ~= '-' and machine == state.machine
  if state.same then
    local passed = uptime - state.anchor
    if state.loose then
      heard_due = state.certain_due + passed
      if wall - state.skew < heard_due then heard_due = 0 end -- the first call was long on its way
    else
      heard_due = passed >= 0 and state.certain_due + passed or math.max(heard_due, state.certain_due + passed)
      heard_now = math.max(heard_now, state.certain_now + passed)
    end
  end
  if machine ~= '-' and own_now > 0 and own_due > 0 and (not state.same or own_now == heard_now) then
    state.certain_due = state.same and heard_due > 0 and heard_due + 1 or own_due
    state.machine, state.anchor, state.certain_now, state.same, state.loose = machine, uptime + 1, own_now, true, false
  elseif machine ~= '-' and not state.machine then
    state.machine, state.anchor, state.loose = machine, uptime + 1, true
  end
  state.uptime = uptime
  return heard_now, heard_due
end

local function take_reading(step)
  reading = string.format('%.0f %.0f %.0f %s %.0f', now, due, state.belief, state.epoch or '0', step)
end

local function advance_clock(said)
  wall_clock()
  local heard_now, heard_due = vouched(said)
  if not (state.clock and state.wall) then
    now, due = math.max(wall, heard_now), wall
  else
    local moved = wall - state.wall
    local by_wall = math.min(math.max(moved, 0), STEP_CAP)
    -- Where somebody vouches, the server's clock has no say beyond a second of that: it has leapt, or the call came late.
    if heard_now > 0 and state.clock + moved - heard_now > STEP_CAP then by_wall = 0 end
    now = math.max(state.clock + by_wall, heard_now)
    local skew, off = state.skew, nil
    if heard_due > 0 then
      -- Ahead of what is certain it may also be because this call was long on its way; the next one will tell. Behind it
      -- cannot be, unless the clock was put back or a doubt was wrong.
      off = wall - skew - heard_due
      if skew > 0 and off < -DOUBT then
        skew = skew + off
        if skew > -TOLERANCE then skew = math.max(0, skew) end
      elseif math.abs(off) > TOLERANCE then
        skew = skew + off
      end
      if math.abs(skew) <= DOUBT then skew = 0 end -- what is left of a doubt that was wrong
    elseif moved < -STEP_CAP then
      skew = skew + moved
    elseif moved > TOLERANCE and skew < 0 then
      skew = math.min(0, skew + moved)
    end
    if skew ~= state.skew then
      state.skew, state.skew_until, state.jumped = skew, now + BELIEVE_AFTER, true
    elseif skew ~= 0 and now > state.skew_until then
      state.skew, state.belief, state.jumped, off = 0, state.belief + 1, true, 0
    end
    if now - state.clock > SILENCE then
      -- Holders that were alive when the silence began get time to beat; those that were late before it do not.
      state.grace, state.grace_from, state.silent = now + SILENCE, state.clock, true
    end
    due = wall - state.skew
    -- Where clock and line agree the line follows the clock: two clocks are never quite equally fast.
    if state.same and state.skew == 0 and off and math.abs(off) <= DOUBT then
      state.certain_due = due - (state.uptime - state.anchor)
    end
  end
  if state.loose then state.certain_now = now - LOOSE end
  state.witness = state.machine
    and string.format('%s %.0f %.0f %.0f', state.machine, state.anchor, now - state.certain_now, due - (state.certain_due or due)) or ''
  take_reading(state.step)
end

-- A run time so many ms from now: never early, whichever way the server's clock is put right later.
local function from_now(ms)
  -- While a jump is doubted, `due` may be behind by what a request took on its way, and catch up later.
  return math.max(wall, due) + ms + (ms > 0 and state.skew ~= 0 and TOLERANCE or 0)
end

local function read_state(extra)
  local f = read('HMGET', STATE, 'seq', 'fence', 'clock', 'wall', 'skew', 'skew_until', 'grace', 'grace_from', 'belief',
    'paused', 'witness', 'format', 'catcher', 'epoch', 'step', extra or 'lane')
  if f[12] and f[12] ~= '3' then
    error(redis.error_reply('FORMAT ' .. STATE .. ' was written by another version of Windlass'))
  end
  state.known = f[3] and true or false
  state.seq = tonumber(f[1]) or 0
  state.fence = tonumber(f[2]) or 0
  state.clock = tonumber(f[3])
  state.wall = tonumber(f[4])
  state.skew = tonumber(f[5]) or 0
  state.skew_until = tonumber(f[6]) or 0
  state.grace = tonumber(f[7]) or 0
  state.grace_from = tonumber(f[8]) or 0
  state.belief = tonumber(f[9]) or 0
  state.paused = f[10] == '1'
  state.last_witness = f[11] or ''
  state.catcher = f[13]
  state.epoch = f[14]
  state.step = tonumber(f[15]) or 0
  return f[16]
end
