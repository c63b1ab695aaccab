#!lua flags=allow-oom
-- Takes waiting jobs away; where the layout can, also tells those who run them.
--
-- ARGV     [4] "1" to cancel running jobs too  [5…] ids
-- layout   cancel(id, running) → whether there was one
-- returns  a digit for each id
-- errors   STALEOP

local replayed = open()
if replayed then return replayed end
local digits = {}
for at = 5, #ARGV do
  digits[#digits + 1] = layout.cancel(ARGV[at], ARGV[4] == '1') and '1' or '0'
end
digits = table.concat(digits)
close(digits)
return digits
