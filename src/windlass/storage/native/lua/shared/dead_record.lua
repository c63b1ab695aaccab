-- DEAD_RECORDS: what is known of a dead or broken job (see storage/formats.py). Needs `meta`.

-- The META record of a dead record, and the position of its data. Nil if Windlass did not write it.
local function read_dead_record(text)
  local at = DEAD_RECORD_SIZE + 1
  local length = meta_length(text, at)
  if not length or #text < at + length + 3 then return nil end
  local message = struct.unpack('>I4', text, at + length)
  return read_meta(string.sub(text, at, at + length - 1)), at + length + 4 + message
end
