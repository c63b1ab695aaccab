#!lua flags=allow-oom
-- A service takes leave of a worker, which is known no more; unless it has a job, or was heard of elsewhere since.
--
-- ARGV     [4] worker  [5] service
-- returns  1 when it is known no more, else 0
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = open()
if replayed then return type(replayed) == 'table' and replayed or tonumber(replayed) end
local worker, service = ARGV[4], ARGV[5]
local seen = call('ZSCORE', LAST_SEEN, worker)
local ours = seen and call('HGET', STATE, 'heard:' .. worker) == service .. ' ' .. seen and #runs_of(worker) == 0
if ours then dismiss(worker) end
close(ours and '1' or '0')
return ours and 1 or 0
