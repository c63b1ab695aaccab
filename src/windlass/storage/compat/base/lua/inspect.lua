#!lua flags=no-writes
-- The look of an audit, without its hand: compares a bounded part of the queue with the others, and tells what does not fit.
-- The server itself sees to it that nothing is written.
--
-- ARGV     [2] the part: of drift.lua here or of the layout's own  [3] cursor, "0" at first
-- returns  { next cursor or "0", jobs looked at, things amiss, 0, kind and id of some of them }
-- errors   WRONGTYPE

SETTING = ARGV[1]
return compare_some(ARGV[2], ARGV[3])
