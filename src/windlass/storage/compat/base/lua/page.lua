#!lua flags=no-writes
-- Some jobs of one state, in their order.
--
-- ARGV     [2] state  [3] how many are passed over  [4] how many at most
-- layout   list(state, offset, limit) → rows
-- returns  rows

SETTING = ARGV[1]
return layout.list(ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]))
