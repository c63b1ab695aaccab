#!lua flags=no-writes
-- uses operations meta leases changes watching wake waiting endings drift
-- The look of an audit, without its hand: compares a bounded part of one key with the others and tells what does not fit
-- (shared/drift.lua). The server itself sees to it that nothing is written.
--
-- ARGV     [1] the part's name, as in shared/drift.lua  [2] cursor: "0" to begin
-- returns  { next cursor or "0", jobs looked at, things amiss, 0, kind and id of some of them }
-- errors   WRONGTYPE

read_state()
measure_all()
return compare_some(ARGV[1], ARGV[2])
