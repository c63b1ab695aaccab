#!lua flags=allow-oom
-- A worker's word, which came by a message: that it is idle, or that it is busy, perhaps with which job and how far.
--
-- ARGV     [4] worker  [5] how many ms ago  [6] "idle" or "busy"  [7] job, or ""  [8] progress from 0 to 1, or ""
--          [9] the service that heard it
-- returns  1; 0 when it was said too long ago, when an idle worker has an assignment that it has not accepted yet (the two
--          messages may have crossed), or when a job is not that worker's
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local worker, at, id, progress, service = ARGV[4], now - tonumber(ARGV[5]), ARGV[7], ARGV[8], ARGV[9]

local function say_idle()
  if not hear(worker, at, service) then return 0 end
  local assigned = call('HGET', STATE, 'assigned:' .. worker)
  if assigned and call('ZSCORE', DISPATCHED, assigned) then return 0 end
  call('SREM', BUSY, worker)
  call('SADD', IDLE, worker)
  keep_workers()
  return 1
end

local function renew(job)
  call('ZADD', PROCESSING, 'XX', 'GT', seconds(at * 1000), job)
  if progress ~= '' then tell_progress(job, progress) end
end

local function say_busy()
  local where = id ~= '' and standing(id, worker)
  if (id ~= '' and not where) or not hear(worker, at, service) then return 0 end
  call('SREM', IDLE, worker)
  call('SADD', BUSY, worker)
  keep_workers()
  if where == 'dispatched' then accept(id, worker, at, iso(now)) end -- who works on it has accepted it
  if where then
    renew(id)
  else
    for _, run in ipairs(runs_of(worker)) do renew(run.token) end
  end
  return 1
end

local replayed = open()
if replayed then return type(replayed) == 'table' and replayed or tonumber(replayed) end
local answer = ARGV[6] == 'idle' and say_idle() or ARGV[6] == 'busy' and say_busy() or 0
close(whole(answer))
return answer
