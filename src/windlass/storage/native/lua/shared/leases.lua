-- LEASES: a LEASE record (see storage/formats.py), then the holder's name and optional padding. The server stores a small hash as one flat list and scans it for every field: leasing 700 jobs would cost
-- 700 × 700 steps. It switches to a hash table at the first value above 64 bytes, so a large batch pads one record.
local LARGE_BATCH = 64
local PADDING = string.rep('\0', 65)

local function write_lease(cancelled, fence, score, holder)
  return struct.pack(LEASE_FORMAT, cancelled, fence, score, #holder) .. holder
end

local function read_lease(text)
  if #text < LEASE_SIZE then -- not written by Windlass: no holder has this fence
    return { cancelled = false, fence = -1, score = IMPLIED_PRIORITY * PRIORITY_STEP, holder = '' }
  end
  local cancelled, fence, score, length = struct.unpack(LEASE_FORMAT, text)
  return { cancelled = cancelled == 1, fence = fence, score = score, holder = string.sub(text, LEASE_SIZE + 1, LEASE_SIZE + length) }
end

local function priority_of(score)
  return math.floor(score / PRIORITY_STEP)
end

-- Up to `limit` HELD members of a holder, in order of their names, after the member `after` if given.
local function held_by(holder, limit, after)
  return call('ZRANGE', HELD, after and '(' .. after or '[' .. holder .. '\0', '(' .. holder .. '\1', 'BYLEX', 'LIMIT', 0, limit)
end

-- A holder whose name begins with a dot belongs to one raw lease call. It goes with its last job.
local function is_raw(holder)
  return string.sub(holder, 1, 1) == '.'
end

local function drop_holder_if_done(holder)
  if is_raw(holder) and #held_by(holder, 1) == 0 then
    call('ZREM', HOLDERS, holder)
  end
end
