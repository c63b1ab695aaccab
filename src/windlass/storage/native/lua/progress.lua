#!lua flags=allow-oom
-- uses operations leases watching
-- Records how far a leased job has come.
--
-- ARGV     [4] id  [5] fence  [6] progress as text, 0 to 1
-- returns  { the clock's reading, "1" still ours, "0" not ours any more, or cancelled }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = open()
if replayed then
  return type(replayed) == 'table' and replayed or { reading(), replayed }
end
measure('HLEN', LEASES, PROGRESS)
measure('ZCARD', WATCHED)

local text = call('HGET', LEASES, ARGV[4])
local lease = text and read_lease(text)
local ours = lease and lease.fence == tonumber(ARGV[5]) and not lease.cancelled
if ours then
  call('HSET', PROGRESS, ARGV[4], ARGV[6])
  tell(ARGV[4], 'progress ' .. ARGV[6])
end
close(ours and '1' or '0')
return { reading(), ours and '1' or '0' }
