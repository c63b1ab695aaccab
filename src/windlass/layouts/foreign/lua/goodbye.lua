#!lua flags=allow-oom
-- A client leaves: its lanes end, and its holders that hold nothing are forgotten. With the last of all the ledger goes.
--
-- ARGV     [2] n, then n holders  […] m, then m lanes
-- layout   retire(holder), where its peers know of workers
-- returns  1 when the ledger went, else 0

SETTING = ARGV[1]
local holders = tonumber(ARGV[2])
for i = 1, holders do
  local holder = ARGV[2 + i]
  if #runs_of(holder) == 0 then dismiss(holder) end
end
for i = 1, tonumber(ARGV[3 + holders]) do call('HDEL', STATE, 'lane:' .. ARGV[3 + holders + i]) end
if call('EXISTS', RUNS, HOLDERS) > 0 or call('HLEN', STATE) > 30 then return 0 end
for _, field in ipairs(call('HKEYS', STATE)) do
  if string.sub(field, 1, 5) == 'lane:' then return 0 end
end
return call('DEL', STATE)
