#!lua flags=allow-oom
-- Gives leases more time, counted from now. For a job of a holder with a name it is a beat: all that it has gets the time.
--
-- ARGV     [4] lease time in ms  [5…] fences
-- layout   extend(run, until, never_less): with never_less, unless it has more time already
--          knows(holder), where its peers may have taken it for lost
-- returns  a digit for each: 1 extended, 0 it is not ours any more, or was cancelled
-- errors   STALEOP

local replayed = open()
if replayed then return replayed end
local ends = now + tonumber(ARGV[4])
local digits = {}
for at = 5, #ARGV do
  local run = run_of(ARGV[at])
  if run and (run.cancelled or layout.knows and not layout.knows(run.holder)) then run = nil end
  digits[#digits + 1] = run and '1' or '0'
  if run then
    layout.extend(run, deadline(run.holder, ends))
    if is_raw(run.holder) then
      call('ZADD', HOLDERS, whole(ends), run.holder) -- it has this one job
    else
      keep_alive(run.holder, ends)
    end
    if layout.beat then layout.beat(run.holder, ends, false) end
  end
end
digits = table.concat(digits)
close(digits)
keep_for(2 * tonumber(ARGV[4]))
return digits
