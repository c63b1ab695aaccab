#!lua flags=allow-oom
-- uses operations schedules
-- Writes or deletes one schedule, if it is still as the caller read it. Keeps the counts of its ticks.
--
-- ARGV     [4] name  [5] expected record: "" none, "*" any or none, else its SHA-1
--          [6] the new record, "" to delete  [7] time of the next tick in ms, "" for none (the schedule is paused)
--          [8] "1" to keep a next tick that is already set
-- returns  { the clock's reading, "1" done, "0" not there, or changed since the caller read it }
-- errors   FORMAT, STALEOP, WRONGTYPE; nothing is written then.

local repeated = begin_op()
if repeated then
  return type(repeated) == 'table' and repeated or { reading(), repeated }
end
measure('HLEN', SCHEDULES)
measure('ZCARD', TICKS)

local name, expected, record, next_tick = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local text = call('HGET', SCHEDULES, name)
local s = split_schedule(text or '')
local as_expected = expected == '*' or (expected == '' and not text) or (text and is_same(s, expected))
local orphan = not text and call('ZSCORE', TICKS, name) -- a tick without a schedule
if not as_expected or (record == '' and not text and not orphan) then
  return { reading(), '0' }
end

if record == '' then
  call('HDEL', SCHEDULES, name)
  call('ZREM', TICKS, name)
else
  s.record = record
  call('HSET', SCHEDULES, name, join_schedule(s))
  if next_tick == '' then
    call('ZREM', TICKS, name)
  elseif ARGV[8] == '1' and not orphan then
    call('ZADD', TICKS, 'NX', next_tick, name)
  else
    call('ZADD', TICKS, next_tick, name)
  end
end
commit_op('1')
return { reading(), '1' }
