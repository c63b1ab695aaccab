-- CHANGE records: the options of one enqueue (see storage/formats.py). An empty one means a plain job. Needs `meta`.
-- BLOCKED: a CHANGE, then the data.
-- record CHANGE

local function has(flags, flag)
  return math.floor(flags / flag) % 2 == 1
end

local function run_at_mode(flags)
  return math.floor(flags / RUN_AT) % 4
end

local function read_change(text)
  if #text < CHANGE_SIZE then
    return { priority = IMPLIED_PRIORITY, run_at = 0, max_failures = IMPLIED_MAX_FAILURES, max_stalls = IMPLIED_MAX_STALLS,
      min_backoff = IMPLIED_MIN_BACKOFF, max_backoff = IMPLIED_MAX_BACKOFF, flags = PLAIN_FLAGS }
  end
  local c = unpack_change(text)
  c.run_at = (c.when == 0 and 0) or (c.when == 1 and c.ms) or from_now(c.ms)
  if c.extras_length > 0 then c.extras = read_extras(string.sub(text, CHANGE_SIZE + 1, CHANGE_SIZE + c.extras_length)) end
  if c.extras and c.extras.expires and not c.extras.lasts then -- as a caller gives it: 0, { 'at', ms } or { 'in', ms }
    local kind, ms = unpack(type(c.extras.expires) == 'table' and c.extras.expires or {})
    local is_duration = kind == 'in' and (tonumber(ms) or 0) > 0
    -- Both fields are set, so that they replace both of an existing job. `false`: set_expiry computes it.
    c.extras.expires, c.extras.lasts = not is_duration and (tonumber(ms) or 0), is_duration and ms or 0
  end
  return c
end

-- Computes an expiry that was given as a duration: it counts from the run time, or from now if that has passed. `moved` is
-- whether the run time has changed.
local function set_expiry(m, run_at, moved)
  local lasts = m.extras and tonumber(m.extras.lasts) or 0
  if lasts > 0 and (moved or not m.extras.expires) then
    m.extras.expires = run_at > due and math.floor(run_at) + lasts or from_now(lasts)
  end
end

local function write_blocked(c)
  local extras = pack_extras(c.extras)
  c.when, c.ms, c.extras_length = c.run_at == 0 and 0 or 1, c.run_at, #extras
  return pack_change(c) .. extras .. c.data
end

local function read_blocked(text)
  local c = read_change(text)
  c.data = string.sub(text, CHANGE_SIZE + (c.extras_length or 0) + 1)
  return c
end

local function change_run_at(old, new, mode)
  if mode == ALWAYS then return new end
  if mode == IF_LATER then return math.max(old, new) end
  if mode == IF_EARLIER then return math.min(old, new) end
  return old
end

-- Replaces the extras of a job, or only the given ones. An empty one stays here, so that it still removes the job's own
-- when a blocked change is applied; drop_empty_extras drops it. The count of snoozes is a counter, not an option.
local function merge_extras(m, c)
  local snoozes = not has(c.flags, RESET_COUNTS) and m.extras and m.extras.snoozes or nil
  if has(c.flags, REPLACE_EXTRAS) then
    m.extras = c.extras
  elseif c.extras and not has(c.flags, KEEP_EXTRAS) then
    m.extras = m.extras or {}
    for name, value in pairs(c.extras) do m.extras[name] = value end
  end
  if snoozes then m.extras = m.extras or {} end
  if m.extras then m.extras.snoozes = snoozes end
end

local function drop_empty_extras(m)
  for name, value in pairs(m.extras or {}) do
    if (value == 0 and name ~= 'max_snoozes') or (type(value) == 'table' and not next(value)) then m.extras[name] = nil end
  end
end

-- Applies a change to the options and counters of a job. Returns the new run time (0 is now).
local function merge(m, run_at, c)
  if has(c.flags, UPDATE_MAX_FAILURES) then m.max_failures = c.max_failures end
  if has(c.flags, UPDATE_MAX_STALLS) then m.max_stalls = c.max_stalls end
  if has(c.flags, UPDATE_MIN_BACKOFF) then m.min_backoff = c.min_backoff end
  if has(c.flags, UPDATE_MAX_BACKOFF) then m.max_backoff = c.max_backoff end
  if has(c.flags, UPDATE_PRIORITY) then m.priority = c.priority end
  if has(c.flags, LIMITS_GIVEN) then set_mark(m, LIMITED, true) end
  if has(c.flags, RESET_COUNTS) then
    m.failures, m.stalls = 0, 0
    set_mark(m, SUSPECT, false)
  end
  merge_extras(m, c)
  return change_run_at(run_at, c.run_at, run_at_mode(c.flags))
end
