#!lua flags=allow-oom
-- A service forgets a worker, unless the worker has a job or another service has heard of it since.
--
-- ARGV     [4] worker  [5] service
-- returns  1 if the worker was removed, else 0
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = begin_op()
if replayed then return type(replayed) == 'table' and replayed or tonumber(replayed) end
local worker, service = ARGV[4], ARGV[5]
local seen = call('ZSCORE', LAST_SEEN, worker)
local ours = seen and call('HGET', STATE, 'heard:' .. worker) == service .. ' ' .. seen and #runs_of(worker) == 0
if ours then dismiss(worker) end
commit_op(ours and '1' or '0')
return ours and 1 or 0
