#!lua flags=allow-oom
-- A worker reported by message that it is idle or busy, optionally with its job and progress.
--
-- ARGV     [4] worker  [5] age of the message in ms  [6] "idle" or "busy"  [7] job, or ""  [8] progress from 0 to 1, or ""
--          [9] the service that received it
-- returns  1; 0 if the message is too old, if an idle worker has a dispatched job that it has not accepted yet (the two
--          messages may have crossed), or if the worker does not have the job
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local worker, at, id, progress, service = ARGV[4], now - tonumber(ARGV[5]), ARGV[7], ARGV[8], ARGV[9]

local function worker_idle()
  if not record_sign_of_life(worker, at, service) then return 0 end
  local assigned = call('HGET', STATE, 'assigned:' .. worker)
  if assigned and call('ZSCORE', DISPATCHED, assigned) then return 0 end
  call('SREM', BUSY, worker)
  call('SADD', IDLE, worker)
  keep_workers()
  return 1
end

local function renew(job)
  call('ZADD', PROCESSING, 'XX', 'GT', seconds(at * 1000), job)
  if progress ~= '' then set_progress(job, progress) end
end

local function worker_busy()
  local where = id ~= '' and state_of(id, worker)
  if (id ~= '' and not where) or not record_sign_of_life(worker, at, service) then return 0 end
  call('SREM', IDLE, worker)
  call('SADD', BUSY, worker)
  keep_workers()
  if where == 'dispatched' then accept(id, worker, at, iso(now)) end -- a worker that works on a job has accepted it
  if where then
    renew(id)
  else
    for _, run in ipairs(runs_of(worker)) do renew(run.token) end
  end
  return 1
end

local replayed = begin_op()
if replayed then return type(replayed) == 'table' and replayed or tonumber(replayed) end
local answer = ARGV[6] == 'idle' and worker_idle() or ARGV[6] == 'busy' and worker_busy() or 0
commit_op(whole(answer))
return answer
