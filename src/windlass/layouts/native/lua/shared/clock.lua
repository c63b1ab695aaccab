-- The clock. `now` (ms) is for leases: it never runs back and follows the server's clock by at most
-- STEP_CAP a step, unless the caller vouches for more: a client that heard `now` some time ago adds
-- what its own monotonic clock says has passed since. `due` (ms) is for run times: the server's clock,
-- less a jump that is not believed yet. A jump is what the clock moved and a vouching caller did not see pass.

local STEP_CAP = 1000 -- ms that the lease clock follows the server's clock on its word alone
local TOLERANCE = 2000 -- ms of disagreement that is not yet a jump of the server's clock
local BELIEVE_AFTER = 300000 -- ms after which a jumped clock is believed
local SILENCE = 5000 -- ms without any sign of life that make named holders worth a grace

local wall, wall_us, now, due
local state = {}
local lane_field

local function wall_clock()
  local time = call('TIME')
  wall = time[1] * 1000 + math.floor(time[2] / 1000)
  wall_us = time[1] * 1000000 + time[2]
end

local function advance_clock(vouched)
  wall_clock()
  if not (state.clock and state.wall) then
    now, due = math.max(wall, vouched), wall
    return
  end
  local moved = wall - state.wall
  now = math.max(state.clock + math.min(math.max(moved, 0), STEP_CAP), vouched)
  local passed = now - state.clock
  local unexplained = moved - passed
  local skew = state.skew
  if moved < -STEP_CAP then
    skew = skew + moved
  elseif unexplained > TOLERANCE then
    if vouched > 0 then
      skew = skew + unexplained
    elseif skew < 0 then
      skew = math.min(0, skew + unexplained)
    end
  elseif unexplained < -TOLERANCE and skew > 0 then
    skew = math.max(0, skew + unexplained)
  end
  if skew ~= state.skew then
    state.skew, state.skew_until, state.jumped = skew, now + BELIEVE_AFTER, true
  elseif skew ~= 0 and now > state.skew_until then
    state.skew, state.jumped = 0, true
  end
  if passed > SILENCE then
    state.grace, state.silent = now + SILENCE, true
  end
  due = wall - state.skew
end

local function read_state(extra)
  local f = read('HMGET', STATE, 'seq', 'fence', 'clock', 'wall', 'skew', 'skew_until', 'grace', 'paused', extra or 'lane')
  state.known = f[3] and true or false
  state.seq = tonumber(f[1]) or 0
  state.fence = tonumber(f[2]) or 0
  state.clock = tonumber(f[3])
  state.wall = tonumber(f[4])
  state.skew = tonumber(f[5]) or 0
  state.skew_until = tonumber(f[6]) or 0
  state.grace = tonumber(f[7]) or 0
  state.paused = f[8] == '1'
  return f[9]
end
