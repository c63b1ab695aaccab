#!lua flags=allow-oom
-- A worker accepts the job that was dispatched to it: the job is processing now. A second accept changes nothing.
--
-- ARGV     [4] worker  [5] how many ms ago it said so  [6] job  [7] when it started, as text  [8] service
-- returns  1, or 0 if the worker does not have the job (any more)
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = begin_op()
if replayed then return type(replayed) == 'table' and replayed or tonumber(replayed) end
local worker, at, id = ARGV[4], now - tonumber(ARGV[5]), ARGV[6]
local where = state_of(id, worker)
if where then record_sign_of_life(worker, at, ARGV[8]) end
if where == 'dispatched' then accept(id, worker, at, ARGV[7]) end
commit_op(where and '1' or '0')
return where and 1 or 0
