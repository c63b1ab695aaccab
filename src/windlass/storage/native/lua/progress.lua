#!lua flags=allow-oom
-- uses operations leases publish_events
-- Records the progress of a leased job.
--
-- ARGV     [4] id  [5] fence  [6] progress as text, 0 to 1
-- returns  { the clock's reading, "1" recorded, "0" the lease was lost or the job cancelled }
-- errors   FORMAT, STALEOP, WRONGTYPE; nothing is written then.

local repeated = begin_op()
if repeated then
  return type(repeated) == 'table' and repeated or { reading(), repeated }
end
measure('HLEN', LEASES, PROGRESS)
measure('ZCARD', WATCHED)

local text = call('HGET', LEASES, ARGV[4])
local lease = text and read_lease(text)
local ours = lease and lease.fence == tonumber(ARGV[5]) and not lease.cancelled
if ours then
  call('HSET', PROGRESS, ARGV[4], ARGV[6])
  publish_event(ARGV[4], 'progress ' .. ARGV[6])
end
commit_op(ours and '1' or '0')
return { reading(), ours and '1' or '0' }
