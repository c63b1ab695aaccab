-- CHANGE, the options of one enqueue: priority, kind of time (0 now, 1 absolute, 2 from now), ms, max_failures,
-- max_stalls, min_backoff, max_backoff, flags. An empty CHANGE means a plain job. BLOCKED: a CHANGE, then the data.
local CHANGE_FORMAT = '>BBI8I4I4I8I8I2'
local CHANGE_SIZE = 36
local UPDATE_DATA, UPDATE_MAX_FAILURES, UPDATE_MAX_STALLS, UPDATE_MIN_BACKOFF, UPDATE_MAX_BACKOFF = 1, 8, 16, 32, 64
local RESET_COUNTS, UPDATE_PRIORITY, KEEP, MUST_EXIST, LIMITS_GIVEN = 128, 256, 512, 1024, 2048
local RUN_AT = 2 -- two bits: 0 leave, 1 replace, 2 if later, 3 if earlier
local ALWAYS, IF_LATER, IF_EARLIER = 1, 2, 3
-- A plain job sets every field: all UPDATE_… flags, RUN_AT as ALWAYS, and RESET_COUNTS. A constant holds numbers only,
-- because scripts.py replaces no name inside another constant.
local PLAIN_FLAGS = 1 + 2 + 8 + 16 + 32 + 64 + 128 + 256

local function has(flags, flag)
  return math.floor(flags / flag) % 2 == 1
end

local function run_at_mode(flags)
  return math.floor(flags / RUN_AT) % 4
end

local function read_change(text)
  if #text ~= CHANGE_SIZE then
    return { priority = 5, run_at = 0, max_failures = 10, max_stalls = 3, min_backoff = 2000, max_backoff = 300000, flags = PLAIN_FLAGS }
  end
  local c, kind, ms = {}, nil, nil
  c.priority, kind, ms, c.max_failures, c.max_stalls, c.min_backoff, c.max_backoff, c.flags = struct.unpack(CHANGE_FORMAT, text)
  c.run_at = (kind == 0 and 0) or (kind == 1 and ms) or from_now(ms)
  return c
end

local function write_blocked(c)
  return struct.pack(CHANGE_FORMAT, c.priority, c.run_at == 0 and 0 or 1, c.run_at, c.max_failures, c.max_stalls,
    c.min_backoff, c.max_backoff, c.flags) .. c.data
end

local function read_blocked(text)
  local c = read_change(string.sub(text, 1, CHANGE_SIZE))
  c.data = string.sub(text, CHANGE_SIZE + 1)
  return c
end

local function change_run_at(old, new, mode)
  if mode == ALWAYS then return new end
  if mode == IF_LATER then return math.max(old, new) end
  if mode == IF_EARLIER then return math.min(old, new) end
  return old
end

-- Applies a change to the counters and limits of a job. Returns the new run time (0 is now).
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
  return change_run_at(run_at, c.run_at, run_at_mode(c.flags))
end
