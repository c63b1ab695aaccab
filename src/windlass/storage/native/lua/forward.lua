#!lua
-- uses operations meta leases changes marks wake place_job enqueue_one take_in
-- Takes in jobs from the outbox of another queue. The outbox is the caller and its sequences are the operation numbers, so a
-- job arrives once, however often and by whichever worker it is sent.
--
-- ARGV     [1] "from:" and the other queue  [2] the last sequence of this call  [3] the caller's clock evidence
--          [4…] for each job: sequence, id, data, change; in the order of their sequences
-- returns  { the clock's reading, number of new jobs }
-- errors   FORMAT, WRONGTYPE; nothing is written then.

caller_field = 'caller:' .. ARGV[1]
local record = read_state(caller_field)
advance_clock(ARGV[3])
state.clear_expiry = not record
local last = record and tonumber(string.match(record, '^%d+')) or 0
measure('ZCARD', READY, SCHEDULED, IDLE, ENDED)
measure('HLEN', DATA, LEASES, META, BLOCKED)

local new = 0
for i = 4, #ARGV, 4 do
  if tonumber(ARGV[i]) > last then
    enqueue_one(ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
    new = new + 1
  end
end
if new > 0 then
  state.clear_expiry = true -- makes commit_op remove an expiry that the last client to unregister set
  commit_op('')
  wake(made_ready)
end
return { reading(), new }
