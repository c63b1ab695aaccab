#!lua flags=allow-oom
-- Extends leases, counted from now. For a job of a named holder it is a beat: it extends all leases of that holder.
--
-- ARGV     [4] lease time in ms  [5…] fences
-- layout   extend(run, until, never_less): with never_less it never shortens a lease
--          knows(holder), if its peers may have declared the holder lost
-- returns  a digit for each lease: 1 extended, 0 lost or cancelled
-- errors   STALEOP

local replayed = begin_op()
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
      call('ZADD', HOLDERS, whole(ends), run.holder) -- a raw holder has one job
    else
      keep_alive(run.holder, ends)
    end
    if layout.beat then layout.beat(run.holder, ends, false) end
  end
end
digits = table.concat(digits)
commit_op(digits)
keep_for(2 * tonumber(ARGV[4]))
return digits
