#!lua flags=allow-oom
-- Dispatches one job to each idle worker and marks the workers as busy. Skips a worker whose last sign of life is older than
-- one tick.
--
-- ARGV     [4…] workers, in the order in which they get jobs
-- returns  for each job: { worker, uuid, JSON text, when it was dispatched, priority }
-- errors   STALEOP, WRONGTYPE; nothing is written then.


local function reply(worker, id, text)
  return { worker, id, field(id, 'json'), text, priority_of(id) }
end

local replayed = begin_op()
if replayed then
  if type(replayed) == 'table' then return replayed end
  local rows = {}
  for _, each in ipairs(cmsgpack.unpack(replayed)) do
    local worker, id, text = unpack(each)
    if state_of(id, worker) == 'dispatched' then rows[#rows + 1] = reply(worker, id, text) end
  end
  return rows
end

local rows, answer, bytes = {}, {}, 0
for at = 4, #ARGV do
  local worker = ARGV[at]
  local seen = call('ZSCORE', LAST_SEEN, worker)
  if seen and tonumber(seen) * 1000 >= now - TICK_MS and call('SISMEMBER', IDLE, worker) == 1 then
    local id = bytes < MAX_REPLY_BYTES and next_job()
    if not id then break end
    local text = iso(now)
    call('SMOVE', IDLE, BUSY, worker)
    call('ZADD', DISPATCHED, seconds(now_us + #rows), id)
    call('HSET', id, 'dispatched_at', text, 'worker_uuid', worker)
    call('HSET', STATE, 'assigned:' .. worker, id)
    rows[#rows + 1] = reply(worker, id, text)
    answer[#answer + 1] = { worker, id, text }
    bytes = bytes + #rows[#rows][3]
  end
end
if #rows > 0 then
  keep_workers()
  commit_op(cmsgpack.pack(answer))
end
return rows
