#!lua flags=allow-oom
-- Deletes the jobs of one state, or all jobs and the ledger.
--
-- ARGV     [4] state, or "all"
-- layout   purge(state) → deleted, remaining; a bounded number in one call
-- returns  { deleted jobs, remaining jobs }
-- errors   STALEOP

local replayed = begin_op()
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
commit_op(gone .. ' ' .. left)
return { gone, left }
