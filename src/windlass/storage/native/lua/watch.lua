#!lua flags=allow-oom
-- uses operations
-- Somebody wants to hear what happens to a job: until the time is over, its events are published on a channel of its own.
--
-- ARGV     [4] id  [5] for how many ms
-- returns  { the clock's reading, "1" }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = open()
if replayed then
  return type(replayed) == 'table' and replayed or { reading(), replayed }
end
measure('ZCARD', WATCHED)
call('ZREMRANGEBYSCORE', WATCHED, '-inf', '(' .. string.format('%.0f', now))
call('ZADD', WATCHED, 'GT', now + tonumber(ARGV[5]), ARGV[4])
call('PEXPIRE', WATCHED, math.max(call('PTTL', WATCHED), tonumber(ARGV[5])))
close('1')
return { reading(), '1' }
