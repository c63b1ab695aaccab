-- Worqr's own part; layout.py has its key map. The token of a run is its process id: the queue, "_", a UUID.

local QUEUE, PROCESSES, WORKERS, EXPIRING, PERMANENT = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local PREFIX = string.match(WORKERS, '^(.*):workers$')
local NAME = string.sub(QUEUE, #PREFIX + #':queues:' + 1)
local room = 1000 -- tasks that this call may still take back
local LONGEST_ID = 512
local ECHO = 3000 -- ms in which we may hear what we said ourselves
expect('list', QUEUE)
expect('set', PROCESSES, WORKERS, EXPIRING, PERMANENT)
layout.sweep_every = 1000

local function process(token) return PREFIX .. ':processes:' .. token end
local function timer(worker) return PREFIX .. ':workerTimers:' .. worker end
local function working_queues(worker) return PREFIX .. ':workingQueues:' .. worker end
local function unique_task(md5) return PREFIX .. ':uniqueTasks:' .. md5 end
local function channel(event) return PREFIX .. '_' .. NAME .. '_' .. event end

local function holds_a(kind, key)
  return call('TYPE', key).ok == kind
end

-- -- ids ---------------------------------------------------------------------------------------------

-- All of Unicode, and nothing else: Python decodes the same.
local SEQUENCES = {
  '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]', '[\225-\236\238\239][\128-\191][\128-\191]',
  '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]',
  '[\241-\243][\128-\191][\128-\191][\128-\191]', '\244[\128-\143][\128-\191][\128-\191]',
}

local function is_text(data)
  for _, sequence in ipairs(SEQUENCES) do
    if not string.find(data, '[\128-\255]') then return true end
    data = string.gsub(data, sequence, '.')
  end
  return not string.find(data, '[\128-\255]')
end

-- A task has no id: it is called what it says, where that can be a name.
local function id_of(task)
  if #task >= 1 and #task <= LONGEST_ID and is_text(task) then return task end
  return 'sha1:' .. redis.sha1hex(task)
end

local function is_hash(id)
  return #id == 45 and string.find(id, '^sha1:[0-9a-f]+$')
end

-- The task of this id that waits. One that is known by its hash is looked for all through the queue.
local function waiting_task(id)
  if call('LPOS', QUEUE, id) then return id end
  for first = 0, is_hash(id) and call('LLEN', QUEUE) - 1 or -1, 100 do
    for _, task in ipairs(call('LRANGE', QUEUE, first, first + 99)) do
      if id_of(task) == id then return task end
    end
  end
  return nil
end

-- The task of this id, if it is what a process works on.
local function task_in(token, id)
  local key = process(token)
  if not holds_a('list', key) then return nil end
  if call('LPOS', key, id) then return id end
  local task = is_hash(id) and call('LINDEX', key, 0)
  return task and id_of(task) == id and task or nil
end

-- All that is worked on: our own runs in their order, then the processes of others as { token = … }.
local function processes()
  local found, ours = {}, {}
  local runs = runs_of()
  for i = #runs, 1, -1 do
    if holds_a('list', process(runs[i].token)) then found[#found + 1] = runs[i] end
    ours[runs[i].token] = true
  end
  local others = call('SMEMBERS', PROCESSES)
  table.sort(others)
  for _, token in ipairs(others) do
    if not ours[token] and holds_a('list', process(token)) then found[#found + 1] = { token = token } end
  end
  return found
end

-- -- the life of a worker ----------------------------------------------------------------------------

function layout.knows(worker)
  return call('EXISTS', timer(worker)) == 1
end

-- Registers a worker that begins, or prolongs the time of one that is known; it is never shortened.
local beaten = {} -- in this call
function layout.beat(worker, ends, register)
  if beaten[worker] then return true end
  if register then
    call('SADD', WORKERS, worker)
    call('SADD', EXPIRING, worker)
    call('SADD', working_queues(worker), NAME)
  end
  if call('PTTL', timer(worker)) < ends - now then call('SET', timer(worker), 'RUN', 'PX', whole(ends - now)) end
  beaten[worker] = true
  return true
end

local function remove_worker(worker)
  for _, key in ipairs({ WORKERS, EXPIRING, PERMANENT }) do call('SREM', key, worker) end
  call('DEL', timer(worker), working_queues(worker))
end

-- Stops work on this queue; a worker without any queue is none any more.
function layout.retire(worker)
  call('SREM', working_queues(worker), NAME)
  if call('EXISTS', working_queues(worker)) == 0 then remove_worker(worker) end
end

-- -- the life of a task ------------------------------------------------------------------------------

function layout.add(_, task)
  call('LPUSH', QUEUE, task)
  came = came + 1
  return 'a'
end

function layout.announce(count)
  call('PUBLISH', channel('work'), count)
end

-- Process ids are random to the peers; the number of the last lease makes ours unique.
local made = 0
local function new_token()
  repeat
    made = made + 1
    local seed = table.concat({ STATE, call('HGET', STATE, 'fence') or '', whole(now_us), made }, ' ')
    local hex = redis.sha1hex(seed)
    local parts = {
      string.sub(hex, 1, 8), string.sub(hex, 9, 12), '4' .. string.sub(hex, 13, 15), 'a' .. string.sub(hex, 16, 18),
      string.sub(hex, 19, 30),
    }
    local token = NAME .. '_' .. table.concat(parts, '-')
    if call('EXISTS', process(token)) == 0 then return token end
  until false
end

function layout.take()
  if call('LLEN', QUEUE) == 0 then return nil end
  local token = new_token()
  call('LMOVE', QUEUE, process(token), 'RIGHT', 'LEFT')
  call('SADD', PROCESSES, token)
  return token
end

function layout.describe(run)
  local task = call('LINDEX', process(run.token), 0)
  return id_of(task), task, ''
end

-- Who takes a task back takes it out of its process.
function layout.holds(run)
  return holds_a('list', process(run.token))
end

-- A peer that fails a worker may forget a process that was begun meanwhile: it is put on the list again.
function layout.extend(run)
  call('SADD', PROCESSES, run.token)
end

local function end_process(token)
  call('DEL', process(token))
  call('SREM', PROCESSES, token)
end

-- To the front is to the right, where the next one is taken.
local function put_back(token, side)
  while call('LMOVE', process(token), QUEUE, 'LEFT', side) do came = came + 1 end
  call('SREM', PROCESSES, token)
end

-- Finish. `hash` is the MD5 of the task, which only Python can make, and "t" if it is text or "b" for other bytes.
function layout.complete(run, _, _, hash)
  local task = call('LINDEX', process(run.token), 0)
  end_process(run.token)
  call('DEL', unique_task(string.sub(hash, 1, 32)))
  if string.sub(hash, 33) == 'b' then task = string.gsub(task, '[\128-\255]', '\239\191\189') end
  local said = '{"workerId":' .. cjson.encode(run.holder) .. ',"task":' .. cjson.encode(task) .. ',"result":null}'
  call('PUBLISH', channel('done'), said)
end

function layout.release(run, _, _, hash)
  if run.cancelled then return layout.complete(run, 0, 0, hash) end
  put_back(run.token, 'RIGHT')
end

function layout.retry(run, _, _, hash)
  if run.cancelled then return layout.complete(run, 0, 0, hash) end
  put_back(run.token, 'LEFT')
end

function layout.stall(run)
  if run.cancelled then return end_process(run.token) end
  put_back(run.token, 'RIGHT')
end

layout.fail, layout.crash, layout.unknown, layout.broken = layout.complete, layout.retry, layout.retry, layout.retry

-- -- failing workers ---------------------------------------------------------------------------------

-- Does something as if this call were for another queue: a dead worker may have served several.
local function visit(queue, work, ...)
  local mine = { STATE, RUNS, HOLDERS, QUEUE, PROCESSES, NAME, came }
  local ledger = 'windlass:{' .. queue .. '}:worqr:'
  STATE, RUNS, HOLDERS = ledger .. 'state', ledger .. 'runs', ledger .. 'holders'
  QUEUE, PROCESSES = PREFIX .. ':queues:' .. queue, PREFIX .. ':workingProcesses:' .. queue
  NAME, came = queue, 0
  work(...)
  if came > 0 then layout.announce(came) end
  STATE, RUNS, HOLDERS, QUEUE, PROCESSES, NAME, came = unpack(mine)
end

-- Nothing must fail in the midst of it: a queue whose keys hold something else is left alone.
local function is_sound()
  for key, kind in pairs({ [QUEUE] = 'list', [PROCESSES] = 'set', [RUNS] = 'hash', [HOLDERS] = 'zset' }) do
    if not holds_a(kind, key) and call('EXISTS', key) == 1 then return false end
  end
  return true
end

-- What dead workers left on a queue comes back. Of a worker that the ledger knows these are its own runs. Of another
-- nobody knows which processes it had: all come back that are none of ours, as its own package does it. If it is too much
-- for one call the workers stay on the list of the dead.
local function recover(dead)
  if not is_sound() then return 0 end
  local before, known, strangers = came, {}, false
  for _, run in ipairs(runs_of()) do
    if dead[run.holder] then
      if room == 0 then return came - before end
      room, known[run.holder] = room - 1, true
      forget(run)
      if layout.holds(run) then layout.stall(run) end
    end
  end
  for worker in pairs(dead) do
    strangers = strangers or not (known[worker] or call('ZSCORE', HOLDERS, worker))
  end
  for _, token in ipairs(strangers and call('SMEMBERS', PROCESSES) or {}) do
    if call('HEXISTS', RUNS, pointer(token)) == 0 and layout.holds({ token = token }) then
      if room == 0 then return came - before end
      room = room - 1
      put_back(token, 'RIGHT')
    end
  end
  for worker in pairs(dead) do
    call('ZREM', HOLDERS, worker)
    call('SREM', working_queues(worker), NAME)
  end
  return came - before
end

-- Any peer recovers any other, on all queues that it worked on: on this one first, for its tasks are asked for.
function layout.sweep()
  local dead, queues = {}, { [NAME] = {} }
  for _, worker in ipairs(call('SDIFF', WORKERS, PERMANENT)) do
    local key = working_queues(worker)
    if not layout.knows(worker) and (holds_a('set', key) or call('EXISTS', key) == 0) then
      dead[worker] = true
      for _, queue in ipairs(call('SMEMBERS', key)) do
        queues[queue] = queues[queue] or {}
        queues[queue][worker] = true
      end
    end
  end
  if not next(dead) then return 0 end
  local taken_back = recover(queues[NAME])
  for queue, workers in pairs(queues) do
    if queue ~= NAME then visit(queue, recover, workers) end
  end
  for worker in pairs(dead) do
    if call('EXISTS', working_queues(worker)) == 0 then remove_worker(worker) end
  end
  return taken_back
end

-- The list of processes, compared with the processes: phantoms go, and what a peer's failWorker forgot is listed again.
function layout.deep_clean(cursor)
  local mended = 0
  for _, token in ipairs(cursor == '0' and call('SMEMBERS', PROCESSES) or {}) do
    if call('EXISTS', process(token)) == 0 then mended = mended + call('SREM', PROCESSES, token) end
  end
  local pattern = string.gsub(process(NAME), '[%[%]%?%*\\]', '\\%0') .. '_*'
  local found = call('SCAN', cursor, 'MATCH', pattern, 'COUNT', 1000)
  for _, key in ipairs(found[2]) do
    local token = string.sub(key, #process('') + 1)
    if string.match(token, '^(.*)_[^_]*$') == NAME and holds_a('list', key) then
      mended = mended + call('SADD', PROCESSES, token)
    end
  end
  return found[1], mended
end

-- -- cancelling --------------------------------------------------------------------------------------

-- Our workers hear what we say to peers, too, and must not take it for another cancellation.
local function echo(task)
  return 'windlass:{' .. NAME .. '}:worqr:cancelled:' .. redis.sha1hex(task)
end

-- `order` is the MD5 of the id, which only Python can make, and the id.
function layout.cancel(order, running)
  local md5, id = string.sub(order, 1, 32), string.sub(order, 33)
  local task, told, stays = waiting_task(id), false, false
  local waited = task ~= nil
  for _, run in ipairs(processes()) do
    local found = task_in(run.token, id)
    if found and running then
      task, told = found, told or not run.cancelled
      if run.fence and not run.cancelled then cancel_run(run, id) end
    elseif found then
      stays = true
    end
  end
  if waited then call('LREM', QUEUE, 0, task) end
  if task == id and not stays then call('DEL', unique_task(md5)) end
  if running and (task or not is_hash(id)) then
    call('PUBLISH', channel('cancel'), task or id)
    call('SET', echo(task or id), '', 'PX', ECHO)
  end
  return waited or told
end

-- -- questions ---------------------------------------------------------------------------------------

function layout.counts()
  return { call('LLEN', QUEUE), 0, 0, call('SCARD', PROCESSES), 0, 0 }
end

local function describe_leased(run)
  local task = call('LINDEX', process(run.token), 0)
  return row('leased', id_of(task), task, run)
end

-- One that runs before one that waits: who asks for an id often wants to know where it is.
function layout.find(id)
  for _, run in ipairs(processes()) do
    if task_in(run.token, id) then return describe_leased(run) end
  end
  local task = waiting_task(id)
  return task and row('ready', id, task)
end

function layout.list(state, offset, limit)
  local rows = {}
  if state == 'ready' then
    local tasks = call('LRANGE', QUEUE, -offset - limit, -offset - 1)
    for i = #tasks, 1, -1 do rows[#rows + 1] = row('ready', id_of(tasks[i]), tasks[i]) end
  elseif state == 'leased' then
    local all = processes()
    for i = offset + 1, math.min(offset + limit, #all) do rows[#rows + 1] = describe_leased(all[i]) end
  end
  return rows
end

function layout.purge(state)
  local gone = 0
  if state == 'ready' or state == 'all' then
    gone = call('LLEN', QUEUE)
    call('UNLINK', QUEUE)
  end
  if state == 'all' then
    local tokens = {}
    for _, run in ipairs(runs_of()) do tokens[run.token] = true end
    for _, token in ipairs(call('SMEMBERS', PROCESSES)) do tokens[token] = true end
    for token in pairs(tokens) do
      gone = gone + call('DEL', process(token))
      call('SREM', PROCESSES, token)
    end
    call('PUBLISH', channel('delete'), '')
  end
  return gone, 0
end
