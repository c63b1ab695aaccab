-- LEASES: cancelled?, fence, ready score to return to; then the holder's name.
local LEASE_FORMAT = '>BI8I8'
local LEASE_HEAD = 17

local function write_lease(cancelled, fence, score, holder)
  return struct.pack(LEASE_FORMAT, cancelled, fence, score) .. holder
end

local function read_lease(text)
  if #text < LEASE_HEAD then -- not ours: nobody owns it
    return { cancelled = false, fence = -1, score = 5 * PRIORITY_STEP, holder = '' }
  end
  local cancelled, fence, score = struct.unpack(LEASE_FORMAT, text)
  return { cancelled = cancelled == 1, fence = fence, score = score, holder = string.sub(text, LEASE_HEAD + 1) }
end

local function held_by(holder, most)
  return call('ZRANGE', HELD, '[' .. holder .. '\0', '(' .. holder .. '\1', 'BYLEX', 'LIMIT', 0, most)
end

-- A holder that begins with a dot was made for one raw lease call and goes with its last job.
local function is_raw(holder)
  return string.sub(holder, 1, 1) == '.'
end

local function drop_holder_if_done(holder)
  if is_raw(holder) and #held_by(holder, 1) == 0 then
    call('ZREM', HOLDERS, holder)
  end
end
