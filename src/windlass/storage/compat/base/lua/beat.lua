#!lua flags=allow-oom
-- Heartbeat of a holder: extends all its leases and forgets the runs it lost.
--
-- ARGV     [4] holder  [5] lease time in ms  [6] "1" to register a holder that is not known
--          [7] limits of the jobs for its failure handlers (META), or ""
-- layout   extend(run, until, never_less) · beat(holder, until, register, limits), if its peers keep a list of workers
--          lost(run), if a peer can take one job from a live holder
-- returns  1 if the holder was known, else 0
-- errors   STALEOP

local replayed = begin_op()
if replayed then return type(replayed) == 'table' and replayed or tonumber(replayed) end
local holder, ends = ARGV[4], now + tonumber(ARGV[5])
local register = ARGV[6] == '1'
local known = is_known(holder)
if not (known or register) then return 0 end -- nothing changes, so a retry needs no recorded answer
if layout.beat and not layout.beat(holder, ends, register, ARGV[7]) then known = false end
if known or register then keep_alive(holder, ends) end
commit_op(known and '1' or '0')
keep_for(2 * tonumber(ARGV[5]))
return known and 1 or 0
