#!lua flags=allow-oom
-- uses operations schedules
-- Writes or deletes one schedule, if it is still what the caller read. What became of its ticks so far is kept.
--
-- ARGV     [4] name  [5] what must be there: "" nothing, "*" anything, else the SHA-1 of the record
--          [6] the new record, "" to delete  [7] when it is due next in ms, "" never (it is paused)
--          [8] "1" when the next tick that is known already stays
-- returns  { the clock's reading, "1" done, "0" it is not there, or not as the caller read it }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = open()
if replayed then
  return type(replayed) == 'table' and replayed or { reading(), replayed }
end
measure('HLEN', SCHEDULES)
measure('ZCARD', TICKS)

local name, expected, record, next_tick = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local text = call('HGET', SCHEDULES, name)
local s = split_schedule(text or '')
local as_expected = expected == '*' or (expected == '' and not text) or (text and is_same(s, expected))
local orphan = not text and call('ZSCORE', TICKS, name) -- a tick of nothing, to be deleted as well
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
close('1')
return { reading(), '1' }
