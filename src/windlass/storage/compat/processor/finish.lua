#!lua flags=allow-oom
-- A worker has finished its job, and is idle again if it has no other.
--
-- ARGV     [4] worker  [5] how many ms ago it said so  [6] job  [7] when it finished, as text  [8] the job as it ended, JSON text
--          [9] service
-- returns  1, or 0 if the worker does not have the job (any more)
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = begin_op()
if replayed then return type(replayed) == 'table' and replayed or tonumber(replayed) end
local worker, at, id = ARGV[4], now - tonumber(ARGV[5]), ARGV[6]
local where = state_of(id, worker)
if where then
  forget_run(id)
  finish(id, at * 1000, ARGV[7], ARGV[8])
  if record_sign_of_life(worker, at, ARGV[9]) and call('HEXISTS', STATE, 'busy:' .. worker) == 0 then
    call('SREM', BUSY, worker)
    call('SADD', IDLE, worker)
    keep_workers()
  end
end
commit_op(where and '1' or '0')
return where and 1 or 0
