#!lua
-- uses operations wake
-- Adds jobs, or changes the jobs that have these ids. Has no `allow-oom`: a full server refuses new jobs before anything is
-- written, and still settles the old ones.
--
-- ARGV     [4] mode: "0" any jobs; "1" the caller has just generated every id, so none is in use; "2" the same, and all jobs
--              are plain
--          [5…] for each job: id, data and, except in mode "2", its change (see CHANGE in shared/changes.lua).
--              Ids are distinct within one call.
-- KEYS     after the queue's own, if jobs have given ids: the queue's `ended`, whose marks of earlier jobs with these ids are
--          dropped, then the results of earlier jobs with these ids, which are deleted
-- returns  { the clock's reading, one letter for each job: a added, u updated, k kept, b blocked, m missing (update of no job),
--            in mode "0", unless repeated, the server's wall clock: an older dead record is that of an earlier job }
-- errors   FORMAT, STALEOP, WRONGTYPE; nothing is written then.

local repeated = begin_op()
if repeated then
  return type(repeated) == 'table' and repeated or { reading(), repeated }
end
local mode = ARGV[4]
local fresh, plain = mode ~= '0', mode == '2'
local has_other_jobs = false -- scheduled or blocked jobs, or META records: then plain jobs cannot take the short way
local marks = KEYS[KEYS_OF_QUEUE + 1]
if call('EXISTS', SCHEDULED, META, BLOCKED, IDLE, marks or IDLE) > 0 then
  measure('ZCARD', SCHEDULED, IDLE, marks or IDLE)
  measure('HLEN', META, BLOCKED)
  has_other_jobs = size[SCHEDULED] + size[META] + size[BLOCKED] > 0
end

local answer, adds, payloads = {}, {}, {}
local outdated = {} -- ids whose marks are those of earlier jobs
if has_other_jobs or not plain then
  -- uses here meta changes place_job enqueue_one
  measure('ZCARD', READY)
  measure('HLEN', DATA, LEASES)
  promote(MAX_ITEMS) -- before new jobs get their sequence, so that jobs that were due earlier go first

  local jobs = plain and 0 or (#ARGV - 4) / 3
  local scores, leases, metas = {}, {}, {}
  if not fresh then
    local ids = {}
    for i = 1, jobs do ids[i] = ARGV[2 + 3 * i] end
    if size[READY] > 0 then scores = call('ZMSCORE', READY, unpack(ids)) end
    if size[LEASES] > 0 then leases = call('HMGET', LEASES, unpack(ids)) end
    if size[META] > 0 then metas = call('HMGET', META, unpack(ids)) end
  end
  for i = 1, jobs do
    local id, data, text = ARGV[2 + 3 * i], ARGV[3 + 3 * i], ARGV[4 + 3 * i]
    local here = scores[i] or (metas[i] and read_meta(metas[i]).seq > 0)
    if text == '' and not here and not leases[i] then
      adds[#adds + 1] = IMPLIED_PRIORITY * PRIORITY_STEP + next_seq()
      adds[#adds + 1] = id
      answer[i] = 'a'
    else
      local only
      answer[i], only = upsert(id, data, text, scores[i], leases[i], metas[i])
      if only then outdated[#outdated + 1] = id end
    end
    if answer[i] == 'a' then
      outdated[#outdated + 1] = id
      payloads[#payloads + 1] = id
      payloads[#payloads + 1] = data
    end
  end
end
if plain then
  payloads = { unpack(ARGV, 5) }
  local seq = state.seq
  for i = 1, #payloads, 2 do
    seq = seq + 1
    adds[i], adds[i + 1] = IMPLIED_PRIORITY * PRIORITY_STEP + seq, payloads[i]
  end
  state.seq = seq
  answer[1] = string.rep('a', #payloads / 2)
end
if #payloads > 0 then checked_call('HSET', DATA, unpack(payloads)) end
if #adds > 0 then
  local added = redis.pcall('ZADD', READY, unpack(adds))
  if type(added) == 'table' then -- READY was not measured and has a wrong type: undo the write
    for i = 1, #payloads, 2 do call('HDEL', DATA, payloads[i]) end
    checked_call('ZCARD', READY)
    error(added)
  end
  made_ready = made_ready + #adds / 2
end

if marks then
  call('UNLINK', unpack(KEYS, KEYS_OF_QUEUE + 2))
  if size[marks] > 0 and #outdated > 0 then call('ZREM', marks, unpack(outdated)) end
end

answer = table.concat(answer)
commit_op(answer)
wake(made_ready)
return { reading(), answer, not fresh and wall or nil }
