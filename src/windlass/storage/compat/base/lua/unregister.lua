#!lua flags=allow-oom
-- A client ends. Deletes its callers and its holders that hold nothing; the last client deletes the ledger.
--
-- ARGV     [2] n, then n holders  […] m, then m callers
-- layout   unregister(holder), if its peers keep a list of workers
-- returns  1 if the ledger was deleted, else 0
-- errors   WRONGTYPE

SETTING = ARGV[1]
local holders = tonumber(ARGV[2])
for i = 1, holders do
  local holder = ARGV[2 + i]
  -- A holder that is not in the ledger may still have jobs in the layout's own keys: its peers recover those.
  if call('ZSCORE', HOLDERS, holder) and #runs_of(holder) == 0 then dismiss(holder) end
end
local callers = tonumber(ARGV[3 + holders])
for i = 1, callers do call('HDEL', STATE, 'caller:' .. ARGV[3 + holders + i]) end
-- A client without callers and holders keeps the state: its notes about abandoned jobs must outlive that client.
if holders + callers == 0 or is_idle() and delete_ledger() then return 0 end
if call('EXISTS', RUNS, HOLDERS) > 0 or call('HLEN', STATE) > MAX_FIELDS then return 0 end
for _, field in ipairs(call('HKEYS', STATE)) do
  if string.sub(field, 1, 7) == 'caller:' then return 0 end
end
return call('DEL', STATE)
