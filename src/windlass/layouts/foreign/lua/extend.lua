#!lua flags=allow-oom
-- Gives leases more time, counted from now.
--
-- ARGV     [4] lease time in ms  [5…] fences
-- layout   extend(run, until)
-- returns  a digit for each: 1 extended, 0 it is not ours any more
-- errors   STALEOP

local replayed = open()
if replayed then return replayed end
local ends = now + tonumber(ARGV[4])
local digits = {}
for at = 5, #ARGV do
  local run = run_of(ARGV[at])
  digits[#digits + 1] = run and '1' or '0'
  if run then
    layout.extend(run, ends)
    call('ZADD', HOLDERS, 'GT', whole(ends), run.holder)
    if layout.beat then layout.beat(run.holder, ends, false) end
  end
end
digits = table.concat(digits)
close(digits)
keep_for(2 * tonumber(ARGV[4]))
return digits
