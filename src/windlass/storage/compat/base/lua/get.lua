#!lua flags=no-writes
-- Everything about one job.
--
-- ARGV     [2] id
-- layout   find(id) → a row, or nil
-- returns  the row, or nil
-- errors   WRONGTYPE

SETTING = ARGV[1]
return layout.find(ARGV[2]) or false
