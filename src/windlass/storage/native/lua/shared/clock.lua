-- The queue's two clocks, in ms. `now` is for leases; it never runs back. `due` is for run times: the server's wall
-- clock, minus a jump that is not believed yet.
--
-- Evidence is what a caller knows about both clocks: the last reading that it got, plus the time that its own monotonic
-- clock has counted since. The real time is at least that, however long the reply and this call took. The caller also
-- sends its machine's id and uptime, so other callers on that machine can use its evidence.
--
-- If the wall clock moves further than the evidence, that is a jump. `now` then follows the wall clock by at most
-- MAX_STEP_MS a call. `due` ignores the jump for BELIEVE_AFTER_MS, and then follows the wall clock again. Without any
-- evidence a jump ahead looks like time that has passed: `due` follows it, until a caller with evidence takes it back.
--
-- Example. At the last call, `now`, `due` and the wall clock were 100,000. Two seconds later the wall clock has been
-- set an hour ahead and shows 3,702,000.
--   A caller that read 100,000 then sends 102,000 as evidence: `now` becomes 103,000 (MAX_STEP_MS more), `behind`
--   3,599,000, `skew` 3,600,000 and `due` 102,000. When `now` has passed `skew_until` (403,000), the jump is believed:
--   `skew` becomes 0, and `due` is the wall clock.
--   A caller without evidence: `now` becomes 101,000, `leap` 3,602,000, and `due` 3,702,000. The next caller with
--   evidence takes the leap back.

local MAX_STEP_MS = 1000 -- how far the lease clock follows the wall clock in one call without evidence
local CLOCK_ERROR_MS = 100 -- two correct clocks may differ by this much
local JUMP_TOLERANCE_MS = 2000 -- a smaller disagreement is not yet a jump of the wall clock
local BELIEVE_AFTER_MS = 300000 -- a jump that lasts 5 min is believed
local MAX_TRANSIT_MS = 60000 -- longest time that a call may take to reach the server
local SILENCE_MS = 5000 -- after a longer silence of all callers, named holders get a grace of the same length

local wall, wall_us, now, due
local confirmed -- `now` as far as evidence confirms it: a call that writes nothing reports this instead of `now`

-- The terms of the clock. All times are in ms.
--
--   skew      wall clock - `due`. A jump that is not believed yet; 0 most of the time
--   leap      wall clock now - wall clock at the last step, if it moved far ahead and no caller had evidence; else 0.
--             The next caller with evidence takes it back
--   behind    (time that the wall clock has moved) - (time that `now` has moved), summed up since they last agreed. A
--             caller with evidence makes up for it
--   frame     a number. Rises when `now` stops being comparable with older readings: they are no evidence for `now`
--   belief    a number. Rises when `due` stops being comparable with older readings: they are no evidence for `due`
--   confirmed the highest of the stored `now` and the evidence for it
--   evidence  a caller's lower bounds of `now` and `due`. The state stores the best one so far

local state = { -- has all its fields from the start: Lua would resize a growing table six times
  seq = 0, fence = 0, step = 0, epoch = 0, paused = false, failure_handler = false,
  clock = false, wall = false, -- `now` and the wall clock at the last step; false for a new queue
  evidence = '', -- the best evidence so far, which this call stores for the next one
  last_evidence = '', -- the evidence that an earlier call stored
  skew = 0, skew_until = 0, -- a jump not believed yet (wall clock minus `due`), and the `now` that ends it
  belief = 0, -- see above
  leap = 0, -- may be taken back
  behind = 0,
  frame = 0,
  grace = 0, grace_from = 0, -- until `grace`, named holders that were alive at `grace_from` are not declared lost
  jumped = false, silent = false, -- whether this call changed the fields of DRIFT: by a jump, or by a silence
  committed = false, clear_expiry = false, -- whether this call has written; whether the key `state` may have an expiry to remove
}
local caller_field

local function wall_clock()
  local time = call('TIME')
  wall_us = time[1] * 1000000 + time[2]
  wall = math.floor(wall_us / 1000)
end

-- EVIDENCE, the evidence of one caller: now and its frame, due and its belief, the uptime of its machine, the machine's id.

local function read_evidence(evidence)
  local machine = string.sub(evidence, EVIDENCE_SIZE + 1)
  if machine == '' or machine == '-' then return { now = 0, due = 0, uptime = 0 } end
  local heard_now, frame, heard_due, belief, uptime = struct.unpack(EVIDENCE_FORMAT, evidence)
  return {
    now = frame == state.frame and heard_now or 0,
    due = belief == state.belief and heard_due or 0,
    machine = machine, uptime = uptime,
  }
end

-- Lower bounds of `now` and `due`, from the caller's own evidence or the last evidence of its machine; 0 where there is none.
-- Only clock readings count: the time between two calls differs from the time between their uptimes, because the first call
-- may have taken longer.
local function lower_bounds(evidence)
  local mine = read_evidence(evidence)
  state.evidence = evidence
  if mine.now > 0 and mine.due > 0 and state.wall and mine.now + CLOCK_ERROR_MS > state.clock + wall - state.wall then
    return mine.now, mine.due -- the common case: the caller's own evidence is enough
  end
  local last = read_evidence(state.last_evidence)
  state.evidence = state.last_evidence
  if mine.machine and mine.machine == last.machine then
    local passed = mine.uptime - last.uptime - 1 -- both are rounded to ms
    if last.now > 0 then last.now = last.now + passed end
    if last.due > 0 then last.due = last.due + passed end
    if mine.now > last.now + 1 or mine.due > 0 and last.due == 0 then state.evidence = evidence end
    return math.max(mine.now, last.now), math.max(mine.due, last.due)
  end
  if mine.now > 0 then state.evidence = evidence end
  return mine.now, mine.due
end

-- The clock's reading, part of every reply: now and its frame, due and its belief (the caller's evidence next time), then the
-- queue's epoch and the step number (they order events and reveal lost writes). Reports `now` only once it is written.
local function reading()
  return { state.committed and now or confirmed, state.frame, due, state.belief, state.epoch, state.step }
end

local function advance_clock(evidence)
  wall_clock()
  local heard_now, heard_due = lower_bounds(evidence)
  if not (state.clock and state.wall) then
    now, due = math.max(wall, heard_now), wall
    confirmed = now
  else
    local moved = wall - state.wall
    -- Evidence counts only as far as the wall clock has moved, plus the part that `now` did not follow before. If the wall
    -- clock was set back, its error is unknown: a new frame begins, and older readings are no evidence any more.
    local surplus = heard_now - (state.clock + moved + state.behind)
    if moved >= 0 and surplus > 0 then heard_now = heard_now - surplus end
    if moved < 0 or surplus > CLOCK_ERROR_MS then state.frame, state.jumped = state.frame + 1, true end
    -- Evidence never moves run times ahead of the wall clock, except by the amount that the wall clock was set back.
    if moved >= 0 then heard_due = math.min(heard_due, wall - math.min(0, state.skew)) end
    confirmed = math.max(state.clock, heard_now)
    now = math.max(confirmed, math.min(state.clock + moved, confirmed + MAX_STEP_MS))
    local behind = moved < 0 and 0 or math.max(0, state.behind + moved - (now - state.clock))
    if behind ~= state.behind then state.behind, state.jumped = behind, true end
    local skew, leap = state.skew, 0
    if heard_due > 0 then
      -- `due` does not run back for a slow call. A leap that no evidence confirmed may be taken back.
      local off = wall - skew - math.max(heard_due, state.wall - skew - state.leap)
      if math.abs(off) > JUMP_TOLERANCE_MS then skew = skew + off end
    elseif moved < -MAX_STEP_MS then
      skew = skew + moved
    elseif moved > JUMP_TOLERANCE_MS then
      leap = moved
      if skew < 0 then skew = math.min(0, skew + moved) end
    end
    local change = skew - state.skew
    if change ~= 0 then
      if state.skew == 0 or math.abs(change) > MAX_TRANSIT_MS then state.skew_until = now + BELIEVE_AFTER_MS end
      if change > 0 and state.leap > 0 then state.belief = state.belief + 1 end -- readings from within the leap no longer count
      state.skew, state.jumped = skew, true
    elseif skew ~= 0 and now > state.skew_until then
      state.skew, state.belief, state.jumped = 0, state.belief + 1, true
    end
    if leap ~= state.leap then state.leap, state.jumped = leap, true end
    if now - state.clock > SILENCE_MS then
      -- Holders that were alive when the silence began get time to beat. Holders that were late before it do not.
      state.grace, state.grace_from, state.silent = now + SILENCE_MS, state.clock, true
    end
    due = wall - state.skew
  end
end

-- Returns when a lease of `ms` ends. The next caller with evidence may move `now` ahead by up to `behind`, so the lease
-- is longer by that much, but at most twice as long. If `behind` is more than `ms`, a new frame begins, and `now` never
-- makes up for it. Example: 15,000 ms with `behind` 4,000 end at `now` + 19,000.
local function lease_end(ms)
  if state.behind > ms then state.behind, state.frame, state.jumped = 0, state.frame + 1, true end
  return now + ms + state.behind
end

-- The run time `ms` from now. Never early, whichever way the wall clock is corrected later.
local function from_now(ms)
  if ms == 0 then return due end -- at once, even if the wall clock has leapt ahead
  -- While a jump is not believed, `due` may be behind by the travel time of a call and catch up later.
  return math.max(wall, due) + ms + (ms > 0 and state.skew ~= 0 and JUMP_TOLERANCE_MS or 0)
end

-- DRIFT: the fields that are 0 until the clock has jumped, was behind, or stood still.
local function read_drift(text)
  local drift = {}
  for number in string.gmatch(text, '%S+') do drift[#drift + 1] = tonumber(number) end
  state.skew, state.skew_until, state.belief, state.leap, state.behind, state.frame, state.grace, state.grace_from = unpack(drift)
end

local function write_drift()
  return string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f', state.skew, state.skew_until, state.belief, state.leap,
    state.behind, state.frame, state.grace, state.grace_from)
end

-- CORE: see storage/formats.py. One field, because every call reads and writes all of it. Clock 0: the queue counts as new.

local function write_core(clock)
  return struct.pack(CORE_FORMAT, VERSION, (state.paused and PAUSED_MARK or 0) + (state.failure_handler and FAILURE_HANDLER_MARK or 0),
    state.seq, state.fence, clock, wall, state.step, state.epoch)
end

local function read_state(extra)
  local f = checked_call('HMGET', STATE, 'core', 'evidence', 'drift', extra or 'caller')
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
  state.last_evidence = f[2] or ''
  if f[3] then read_drift(f[3]) end
  return f[4]
end
