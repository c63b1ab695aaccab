#!lua flags=allow-oom
-- uses operations wake
-- Pauses or resumes a queue. A paused queue leases no jobs; running jobs go on and new jobs wait.
--
-- ARGV     [4] "1" pause, "0" resume
-- returns  { the clock's reading, "1" if that changed the queue, else "0" }
-- errors   FORMAT, STALEOP, WRONGTYPE; nothing is written then.

local repeated = begin_op()
if repeated then
  return type(repeated) == 'table' and repeated or { reading(), repeated }
end
measure('ZCARD', READY, IDLE)

local changed = state.paused ~= (ARGV[4] == '1')
state.paused = ARGV[4] == '1'
commit_op(changed and '1' or '0')
if changed and ARGV[4] == '0' then
  -- Scheduled jobs may have become due meanwhile, so at least one waiter must wake.
  wake(math.max(1, size[READY]))
end
return { reading(), changed and '1' or '0' }
