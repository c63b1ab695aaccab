#!lua flags=allow-oom
-- uses operations
-- Publishes the events of a job on the job's own channel for a while.
--
-- ARGV     [4] id  [5] for how many ms
-- returns  { the clock's reading, "1" }
-- errors   FORMAT, STALEOP, WRONGTYPE; nothing is written then.

local repeated = begin_op()
if repeated then
  return type(repeated) == 'table' and repeated or { reading(), repeated }
end
measure('ZCARD', WATCHED)
call('ZREMRANGEBYSCORE', WATCHED, '-inf', '(' .. string.format('%.0f', now))
call('ZADD', WATCHED, 'GT', now + tonumber(ARGV[5]), ARGV[4])
call('PEXPIRE', WATCHED, math.max(call('PTTL', WATCHED), tonumber(ARGV[5])))
commit_op('1')
return { reading(), '1' }
