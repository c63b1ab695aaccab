#!lua flags=no-writes
-- Counts the jobs of each state.
--
-- layout   counts() → the first six numbers
-- returns  { ready, scheduled, blocked, running, dead, broken, holders }
-- errors   WRONGTYPE

SETTING = ARGV[1]
local found = layout.counts()
found[7] = call('ZCARD', HOLDERS)
return found
