#!lua flags=allow-oom
-- A holder's sign of life: all that it holds is safe for so long. What it does not hold any more is forgotten.
--
-- ARGV     [4] holder  [5] ms  [6] "1" to make it known  [7] the limits of jobs for its failure handlers (META), or ""
-- layout   extend(run, until, never_less) · beat(holder, until, register, limits), where its peers want to know of workers
--          lost(run), where a peer can take away one job of a holder that lives
-- returns  1 when it was known, else 0
-- errors   STALEOP

local replayed = open()
if replayed then return type(replayed) == 'table' and replayed or tonumber(replayed) end
local holder, ends = ARGV[4], now + tonumber(ARGV[5])
local register = ARGV[6] == '1'
local known = is_known(holder)
if known or register then
  if layout.beat and not layout.beat(holder, ends, register, ARGV[7]) then known = false end
  if known or register then keep_alive(holder, ends) end
end
close(known and '1' or '0')
keep_for(2 * tonumber(ARGV[5]))
return known and 1 or 0
