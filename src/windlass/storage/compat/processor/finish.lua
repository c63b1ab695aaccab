#!lua flags=allow-oom
-- A worker has finished its job, and is idle again if that was its only one.
--
-- ARGV     [4] worker  [5] how many ms ago it said so  [6] job  [7] when it finished, as text  [8] the job as it ended, JSON text
--          [9] service
-- returns  1, or 0 when the job is not that worker's (any more)
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = open()
if replayed then return type(replayed) == 'table' and replayed or tonumber(replayed) end
local worker, at, id = ARGV[4], now - tonumber(ARGV[5]), ARGV[6]
local where = standing(id, worker)
if where then
  forget_run(id)
  finish(id, at * 1000, ARGV[7], ARGV[8])
  if hear(worker, at, ARGV[9]) and call('HEXISTS', STATE, 'busy:' .. worker) == 0 then
    call('SREM', BUSY, worker)
    call('SADD', IDLE, worker)
    keep_workers()
  end
end
close(where and '1' or '0')
return where and 1 or 0
