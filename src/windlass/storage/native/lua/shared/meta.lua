-- META records: the options, counters and marks of a job (see storage/formats.py). Absent while all are as implied.
-- record META

-- Extras are what few jobs have: { tags = { … }, expires = ms, lasts = ms, snoozes = count, max_snoozes = count }. Nil
-- without any.
local function read_extras(packed)
  if packed == '' then return nil end
  local fine, extras = pcall(cmsgpack.unpack, packed)
  return fine and type(extras) == 'table' and extras or nil -- else not written by Windlass
end

local function pack_extras(extras)
  return extras and next(extras) and cmsgpack.pack(extras) or ''
end

-- The tags among the extras; none if Windlass did not write them.
local function tags_of(extras)
  return extras and type(extras.tags) == 'table' and extras.tags or {}
end

local function remove_expiry(m)
  if m.extras then m.extras.expires, m.extras.lasts = nil, nil end
end

-- The length of the META record at a position of a text; nil if there is no whole record.
local function meta_length(text, at)
  if #text < at - 1 + META_SIZE then return nil end
  local length = META_SIZE + unpack_meta(text, at).extras_length
  return #text >= at - 1 + length and length or nil
end

-- A record of another length was not written by Windlass: it reads as the implied values.
local function read_meta(text)
  if not text or meta_length(text, 1) ~= #text then
    return { marks = 0, priority = IMPLIED_PRIORITY, max_failures = IMPLIED_MAX_FAILURES, max_stalls = IMPLIED_MAX_STALLS,
      failures = 0, stalls = 0, min_backoff = IMPLIED_MIN_BACKOFF, max_backoff = IMPLIED_MAX_BACKOFF, seq = 0 }
  end
  local m = unpack_meta(text)
  if m.extras_length > 0 then m.extras = read_extras(string.sub(text, META_SIZE + 1)) end
  return m
end

local function write_meta(m)
  local extras = pack_extras(m.extras)
  m.version, m.extras_length = META_VERSION, #extras
  return pack_meta(m) .. extras
end

-- Whether a ready or leased job needs no META record: everything but its priority is as implied.
local function is_plain(m)
  return m.marks == 0 and m.max_failures == IMPLIED_MAX_FAILURES and m.max_stalls == IMPLIED_MAX_STALLS and m.failures == 0
    and m.stalls == 0 and m.min_backoff == IMPLIED_MIN_BACKOFF and m.max_backoff == IMPLIED_MAX_BACKOFF
    and not (m.extras and next(m.extras))
end

local function snoozes_of(m)
  return m.extras and tonumber(m.extras.snoozes) or 0
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

-- Whether a job or a blocked change has an expiry (0 removes one) that has passed.
local function is_past_expiry(m)
  local expires = m.extras and tonumber(m.extras.expires) or 0
  return expires > 0 and expires <= due
end
