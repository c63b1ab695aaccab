-- SCHEDULES: counts of the ticks so far (fired, dropped, missed) and the time of the last one, a line break, then the
-- record: JSON that the scripts do not parse. A schedule that never ticked has no first line.

local function split_schedule(text)
  local fired, dropped, missed, last, record = string.match(text, '^(%d+) (%d+) (%d+) (%d+)\n(.*)$')
  if not record then return { fired = 0, dropped = 0, missed = 0, last = 0, record = text } end
  return { fired = tonumber(fired), dropped = tonumber(dropped), missed = tonumber(missed), last = tonumber(last), record = record }
end

local function join_schedule(s)
  return string.format('%.0f %.0f %.0f %.0f\n', s.fired, s.dropped, s.missed, s.last) .. s.record
end

-- Whether the record still has the SHA-1 of the record that the caller read.
local function is_same(s, sha)
  return redis.sha1hex(s.record) == sha
end
