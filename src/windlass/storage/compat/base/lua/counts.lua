#!lua flags=no-writes
-- How many jobs there are: { ready, scheduled, blocked, leased, dead, broken, holders }
--
-- layout   counts() → the first six

SETTING = ARGV[1]
local found = layout.counts()
found[7] = call('ZCARD', HOLDERS)
return found
