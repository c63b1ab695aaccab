#!lua flags=allow-oom
-- A client leaves: its callers end, and its holders that hold nothing are forgotten. With the last of all the ledger goes.
--
-- ARGV     [2] n, then n holders  […] m, then m callers
-- layout   retire(holder), where its peers know of workers
-- returns  1 when the ledger went, else 0

SETTING = ARGV[1]
local holders = tonumber(ARGV[2])
for i = 1, holders do
  local holder = ARGV[2 + i]
  -- A name that the ledger does not know may still have jobs by the layout's own keys: its peers find that out.
  if call('ZSCORE', HOLDERS, holder) and #runs_of(holder) == 0 then dismiss(holder) end
end
local callers = tonumber(ARGV[3 + holders])
for i = 1, callers do call('HDEL', STATE, 'caller:' .. ARGV[3 + holders + i]) end
-- Who only waited in vain takes nothing along: what was noted of abandoned jobs must outlive it.
if holders + callers == 0 or call('EXISTS', RUNS, HOLDERS) > 0 or call('HLEN', STATE) > 30 then return 0 end
for _, field in ipairs(call('HKEYS', STATE)) do
  if string.sub(field, 1, 7) == 'caller:' then return 0 end
end
return call('DEL', STATE)
