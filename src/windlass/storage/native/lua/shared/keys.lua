-- Reading keys and their sizes. Part of every script.
--
-- KEYS   the keys of one queue that the script names, in the order of keys.py. A script names a key by its name in keys.py
--        in capitals. scripts.py replaces key names and constants when it loads a script. KEYS_OF_QUEUE is their number.
--        Constants that no script defines are those of storage/formats.py, which Python uses, too.
-- ARGV   of a script that writes: [1] caller  [2] operation number of that caller  [3] the caller's clock evidence (EVIDENCE
--        in clock.lua), then the script's own arguments. A script that only reads has only its own.
--
-- Every script that writes has three parts: read and check, decide, write. It reads the sizes of all keys it may write
-- first, so a key of a wrong type stops the script before it writes anything.

local call = redis.call
local size = setmetatable({}, { __index = function() return 0 end }) -- key → size, 0 if the script did not measure it

-- Calls a command. A key of a wrong type becomes an error that names the key.
local function checked_call(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply) end
    error(redis.error_reply('WRONGTYPE ' .. key .. ' has a wrong type'))
  end
  return reply
end

-- Reads the sizes of keys with ZCARD, HLEN or LLEN.
local function measure(command, ...)
  for i = 1, select('#', ...) do
    local key = select(i, ...)
    size[key] = checked_call(command, key)
  end
end
