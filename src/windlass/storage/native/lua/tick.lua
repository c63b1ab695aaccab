#!lua
-- uses operations meta changes marks wake place_job enqueue_one take_in schedules
-- Fires the ticks of one schedule and sets its next tick, in one step. The caller computed the jobs from the schedule it read:
-- if the schedule or its tick changed since, nothing happens. Has no `allow-oom`: on a full server the ticks stay due.
--
-- ARGV     [4] name  [5] the due tick, as the caller read it  [6] SHA-1 of the record it read
--          [7] the queue's time when it read them  [8] the next tick to set  [9] the last tick that fires, or "0"
--          [10] number of missed ticks  [11] number of ticks that coincide with one that fires
--          [12] data of the jobs  [13…] for each job: id, change (see CHANGE in shared/changes.lua). Ids are distinct.
-- returns  { the clock's reading, event, jobs added, jobs dropped because their id is in use }
--          event: f fired, g the schedule is gone, c it was changed, m another worker fired its ticks, e it is too early
-- errors   FORMAT, STALEOP, WRONGTYPE; nothing is written then.

local repeated = begin_op()
if repeated then
  if type(repeated) == 'table' then return repeated end
  local added, dropped = string.match(repeated, '^(%d+) (%d+)$')
  return { reading(), 'f', tonumber(added), tonumber(dropped) }
end
measure('ZCARD', READY, TICKS)
measure('HLEN', DATA, LEASES, SCHEDULES)
if call('EXISTS', SCHEDULED, IDLE, META, BLOCKED, ENDED) > 0 then
  measure('ZCARD', SCHEDULED, IDLE, ENDED)
  measure('HLEN', META, BLOCKED)
end

local name, expected = ARGV[4], tonumber(ARGV[5])
local text = call('HGET', SCHEDULES, name)
if not text then return { reading(), 'g', 0, 0 } end
local s = split_schedule(text)
if not is_same(s, ARGV[6]) then return { reading(), 'c', 0, 0 } end
local tick = tonumber(call('ZSCORE', TICKS, name) or nil)
if not tick or math.floor(tick) ~= expected then return { reading(), 'm', 0, 0 } end
-- The wall clock may have been set back since the caller read the schedule.
if due < expected or due < tonumber(ARGV[7]) then return { reading(), 'e', 0, 0 } end

promote(MAX_ITEMS) -- before new jobs get their sequence, so that jobs that were due earlier go first
local added, dropped = 0, 0
for i = 13, #ARGV, 2 do
  local id, change = ARGV[i], ARGV[i + 1]
  local letter, only = enqueue_one(id, ARGV[12], change)
  if letter == 'a' or only then added = added + 1 else dropped = dropped + 1 end
end
s.fired, s.dropped, s.missed = s.fired + added, s.dropped + dropped + tonumber(ARGV[11]), s.missed + tonumber(ARGV[10])
if ARGV[9] ~= '0' then s.last = tonumber(ARGV[9]) end
call('HSET', SCHEDULES, name, join_schedule(s))
call('ZADD', TICKS, ARGV[8], name)
commit_op(string.format('%d %d', added, dropped))
wake(made_ready)
return { reading(), 'f', added, dropped }
