#!lua flags=allow-oom
-- Deletes jobs of one state, or of all and the ledger with them.
--
-- ARGV     [4] state, or "all"
-- layout   purge(state) → deleted, left; a bounded number in one call
-- returns  { deleted, left }
-- errors   STALEOP

local replayed = open()
if replayed then
  if type(replayed) == 'table' then return replayed end
  local gone, left = string.match(replayed, '^(%d+) (%d+)$')
  return { tonumber(gone), tonumber(left) }
end
local gone, left = layout.purge(ARGV[4])
if ARGV[4] == 'all' and left == 0 then
  call('DEL', RUNS, HELD)
  for _, holder in ipairs(call('ZRANGE', HOLDERS, 0, -1)) do
    if is_raw(holder) then dismiss(holder) end
  end
end
close(gone .. ' ' .. left)
return { gone, left }
