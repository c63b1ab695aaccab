#!lua flags=allow-oom
-- Gives the next jobs to idle workers, each one, and takes those off the idle. A worker whose last word is older than one
-- tick gets none.
--
-- ARGV     [4…] workers, in the order in which they are served
-- returns  for each job: { worker, uuid, JSON text, when it was dispatched, priority }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local MOST_BYTES = 8 * 1024 * 1024

local function reply(worker, id, text)
  return { worker, id, field(id, 'json'), text, priority_of(id) }
end

local replayed = open()
if replayed then
  if type(replayed) == 'table' then return replayed end
  local rows = {}
  for _, each in ipairs(cmsgpack.unpack(replayed)) do
    local worker, id, text = unpack(each)
    if standing(id, worker) == 'dispatched' then rows[#rows + 1] = reply(worker, id, text) end
  end
  return rows
end

local rows, answer, bytes = {}, {}, 0
for at = 4, #ARGV do
  local worker = ARGV[at]
  local seen = call('ZSCORE', LAST_SEEN, worker)
  if seen and tonumber(seen) * 1000 >= now - TICK and call('SISMEMBER', IDLE, worker) == 1 then
    local id = bytes < MOST_BYTES and next_job()
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
  close(cmsgpack.pack(answer))
end
return rows
