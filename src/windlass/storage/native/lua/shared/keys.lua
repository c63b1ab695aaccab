-- The sizes of keys. Part of every script.
--
-- KEYS   the keys of one queue that the script names, in the order of keys.py. In the text they have the names of keys.py in
--        capitals: these, and constants, are put in when the scripts are loaded (see scripts.py). KEYS_OF_QUEUE: how many they are.
-- ARGV   of a script that writes: [1] caller  [2] operation number on that caller  [3] the time the caller vouches for;
--        then the script's own. Scripts that only read have just their own.
--
-- Every script that writes has three parts: read and check, decide, write. The sizes of all keys that it may write
-- are read first, so a key of a foreign type stops a script while nothing is written.

local call = redis.call
local PRIORITY_STEP = 2 ^ 49 -- a ready score is priority * PRIORITY_STEP + sequence: exact in a double
local MOST = 1000 -- items one call may move; keeps every script at a few milliseconds
local size = setmetatable({}, { __index = function() return 0 end }) -- of keys that were measured; 0 for the others

-- A key of a foreign type is an error that names the key.
local function read(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply) end
    error(redis.error_reply('WRONGTYPE ' .. key .. ' does not hold what Windlass keeps there'))
  end
  return reply
end

-- Reads the sizes of keys with ZCARD, HLEN or LLEN.
local function measure(command, ...)
  for i = 1, select('#', ...) do
    local key = select(i, ...)
    size[key] = read(command, key)
  end
end
