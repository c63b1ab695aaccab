#!lua flags=allow-oom
-- A holder's sign of life: all that it holds is safe for so long. What it does not hold any more is forgotten.
--
-- ARGV     [4] holder  [5] ms  [6] "1" to make it known
-- layout   extend(run, until) · beat(holder, until, register), where its peers want to know of workers
-- returns  1 when it is (still) known, else 0
-- errors   STALEOP

local replayed = open()
if replayed then return type(replayed) == 'table' and replayed or tonumber(replayed) end
local holder, ends = ARGV[4], now + tonumber(ARGV[5])
local known = (is_known(holder) or ARGV[6] == '1') and 1 or 0
if known == 1 and layout.beat and not layout.beat(holder, ends, ARGV[6] == '1') then known = 0 end
if known == 1 then
  call('ZADD', HOLDERS, whole(ends), holder)
  for _, run in ipairs(runs_of(holder)) do
    if layout.holds(run) then layout.extend(run, ends) else forget(run) end
  end
end
close(whole(known))
return known
