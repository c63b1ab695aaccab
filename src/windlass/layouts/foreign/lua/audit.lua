#!lua flags=allow-oom
-- One step of a deep clean.
--
-- ARGV     [4] cursor, "0" at first
-- layout   deep_clean(cursor) → next cursor ("0" at the end), things mended
-- returns  { next cursor, mended }
-- errors   STALEOP

local replayed = open()
if replayed then
  if type(replayed) == 'table' then return replayed end
  local following, mended = string.match(replayed, '^(%S+) (%d+)$')
  return { following, tonumber(mended) }
end
local following, mended = layout.deep_clean(ARGV[4])
close(following .. ' ' .. mended)
announce()
return { following, mended }
