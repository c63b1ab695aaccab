#!lua flags=no-writes
-- One page of the jobs of a state, in their order.
--
-- ARGV     [2] state  [3] offset  [4] rows at most
-- layout   list(state, offset, limit) → rows
-- returns  rows
-- errors   WRONGTYPE

SETTING = ARGV[1]
return layout.list(ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]))
