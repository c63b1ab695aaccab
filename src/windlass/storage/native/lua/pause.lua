#!lua flags=allow-oom
-- uses operations wake
-- Stops or resumes the giving out of jobs. What is leased goes on, what is enqueued waits.
--
-- ARGV     [4] "1" pause, "0" resume
-- returns  { the clock's reading, "1" when that changed anything, "0" when it was so already }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = open()
if replayed then
  return type(replayed) == 'table' and replayed or { reading(), replayed }
end
measure('ZCARD', READY, IDLE)

local changed = state.paused ~= (ARGV[4] == '1')
state.paused = ARGV[4] == '1'
close(changed and '1' or '0')
if changed and ARGV[4] == '0' then
  -- Run times may have passed meanwhile: at least one waiter must look.
  wake(math.max(1, size[READY]))
end
return { reading(), changed and '1' or '0' }
