#!lua flags=allow-oom
-- A worker accepts the job that was dispatched to it: it is processing now. To accept again is no mistake.
--
-- ARGV     [4] worker  [5] how many ms ago it said so  [6] job  [7] when it started, as text  [8] service
-- returns  1, or 0 when the job is not that worker's (any more)
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = open()
if replayed then return type(replayed) == 'table' and replayed or tonumber(replayed) end
local worker, at, id = ARGV[4], now - tonumber(ARGV[5]), ARGV[6]
local where = standing(id, worker)
if where then hear(worker, at, ARGV[8]) end
if where == 'dispatched' then accept(id, worker, at, ARGV[7]) end
close(where and '1' or '0')
return where and 1 or 0
