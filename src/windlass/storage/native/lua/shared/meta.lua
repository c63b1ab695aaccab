-- Records are packed by `struct`, big-endian; records.py reads and writes the same formats.
--
-- META: version, marks, priority, max_failures, max_stalls, failures, stalls, min_backoff, max_backoff, sequence.
-- Only scheduled jobs use priority and sequence: a ready or leased job has both in its score.
-- Marks: SUSPECT ran in a process that died and may have killed it; FAILURE_JOB is a job for the failure handler (see
-- endings.lua); LIMITED was enqueued with its own limits, which override those of its task.
local META_FORMAT = '>BBBI4I4I4I4I8I8I8'
local META_SIZE = 43
local SUSPECT, FAILURE_JOB, LIMITED = 1, 2, 4
local PLAIN = { marks = 0, priority = 5, max_failures = 10, max_stalls = 3, failures = 0, stalls = 0, min_backoff = 2000, max_backoff = 300000, seq = 0 }

-- A record of another length was not written by Windlass: it reads as the plain values.
local function read_meta(text)
  local m = {}
  if not text or #text ~= META_SIZE then
    for k, v in pairs(PLAIN) do m[k] = v end
    return m
  end
  local _
  _, m.marks, m.priority, m.max_failures, m.max_stalls, m.failures, m.stalls, m.min_backoff, m.max_backoff, m.seq =
    struct.unpack(META_FORMAT, text)
  return m
end

local function write_meta(m)
  return struct.pack(META_FORMAT, 2, m.marks, m.priority, m.max_failures, m.max_stalls, m.failures, m.stalls, m.min_backoff, m.max_backoff, m.seq)
end

-- Whether a ready or leased job needs no META record: everything but its priority has the plain value.
local function is_plain(m)
  return m.marks == 0 and m.max_failures == 10 and m.max_stalls == 3 and m.failures == 0 and m.stalls == 0
    and m.min_backoff == 2000 and m.max_backoff == 300000
end

local function scheduled_member(seq, id)
  return struct.pack('>I8', seq) .. id
end

local function marked(m, mark)
  return math.floor((m.marks or 0) / mark) % 2 == 1
end

local function set_mark(m, mark, on)
  if marked(m, mark) ~= on then m.marks = (m.marks or 0) + (on and mark or -mark) end
end
