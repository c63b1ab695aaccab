-- Worqr's own part; layout.py has its key map. The token of a run is its process id: the queue, "_", a UUID. A UUID made by
-- Windlass begins with the SHA-1 of the task, so TOKENS, a sorted set of them with all scores 0, finds the runs of a task.
--
-- KEYS   [4…8] Worqr's keys  [9] TOKENS  then for each worker of this call its workingQueues and workerTimers

local QUEUE, PROCESSES, WORKERS, EXPIRING, PERMANENT = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local TOKENS = KEYS[9]
local PREFIX = string.match(WORKERS, '^(.*):workers$')
local NAME = string.sub(QUEUE, #PREFIX + #':queues:' + 1)
local room = 1000 -- tasks that this call may still take back: keeps it at a few milliseconds
local MAX_ID_BYTES = 512
local ECHO_TTL_MS = 3000 -- a published cancellation reaches our own workers within this time
expect('list', QUEUE)
expect('set', PROCESSES, WORKERS, EXPIRING, PERMANENT)
expect('zset', TOKENS)
for at = 10, #KEYS - 1, 2 do
  expect('set', KEYS[at])
  expect('string', KEYS[at + 1])
end
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

-- The multi-byte sequences of valid UTF-8, the same that Python accepts.
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

-- A task has no id of its own: its id is its text, or its hash if the text cannot be an id.
local function id_of(task)
  if #task >= 1 and #task <= MAX_ID_BYTES and is_text(task) then return task end
  return 'sha1:' .. redis.sha1hex(task)
end

local function is_hash(id)
  return #id == 45 and string.find(id, '^sha1:[0-9a-f]+$')
end

-- The waiting task with this id. For a hash, this walks through the whole queue.
local function waiting_task(id)
  if call('LPOS', QUEUE, id) then return id end
  for first = 0, is_hash(id) and call('LLEN', QUEUE) - 1 or -1, 100 do
    for _, task in ipairs(call('LRANGE', QUEUE, first, first + 99)) do
      if id_of(task) == id then return task end
    end
  end
  return nil
end

-- The task of a process, if it has this id.
local function task_in(token, id)
  local key = process(token)
  if not holds_a('list', key) then return nil end
  if call('LPOS', key, id) then return id end
  local task = is_hash(id) and call('LINDEX', key, 0)
  return task and id_of(task) == id and task or nil
end

-- The common prefix of Windlass's process ids for a task with this SHA-1: the queue and a UUID without its last part.
local function beginning(sha1)
  local parts = {
    string.sub(sha1, 1, 8), string.sub(sha1, 9, 12), '4' .. string.sub(sha1, 13, 15), 'a' .. string.sub(sha1, 16, 18), '',
  }
  return NAME .. '_' .. table.concat(parts, '-')
end

local function oldest_first(a, b)
  return tonumber(a.fence or 'inf') < tonumber(b.fence or 'inf')
end

-- The runs of a task with this id: Windlass's runs in order, then other processes as { token = … }. Also returns the task.
-- TOKENS indexes Windlass's runs; the other processes are checked one by one.
local function works_on(id)
  local found, task = {}, nil
  local function look(tokens)
    for _, token in ipairs(tokens) do
      local one = task_in(token, id)
      local fence = one and call('HGET', RUNS, fence_field(token))
      local text = fence and call('HGET', RUNS, fence)
      if one then
        task = one
        found[#found + 1] = text and read_run(fence, text) or { token = token }
      end
    end
  end
  for _, sha1 in ipairs({ redis.sha1hex(id), is_hash(id) and string.sub(id, 6) or nil }) do
    local from = beginning(sha1)
    look(call('ZRANGE', TOKENS, '[' .. from, '(' .. from .. 'g', 'BYLEX'))
  end
  look(call('ZDIFF', 2, PROCESSES, TOKENS))
  table.sort(found, oldest_first)
  return found, task
end

-- All running tasks: Windlass's runs in order, then other processes as { token = … }.
local function processes()
  local found, ours = {}, {}
  local runs = all_runs()
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

-- TOKENS expires some time after the last run of Windlass.
local function keep_tokens(ends)
  local ms = whole(math.max(DAY_MS, 2 * (ends - now)))
  call('PEXPIRE', TOKENS, ms, 'NX')
  call('PEXPIRE', TOKENS, ms, 'GT')
end

-- Registers a new worker, or extends the timer of a known one; never shortens it.
local renewed = {} -- in this call
function layout.beat(worker, ends, register)
  if renewed[worker] then return true end
  if register then
    call('SADD', WORKERS, worker)
    call('SADD', EXPIRING, worker)
    call('SADD', working_queues(worker), NAME)
  end
  keep_tokens(ends)
  if call('PTTL', timer(worker)) < ends - now then call('SET', timer(worker), 'RUN', 'PX', whole(ends - now)) end
  renewed[worker] = true
  return true
end

local function remove_worker(worker)
  for _, key in ipairs({ WORKERS, EXPIRING, PERMANENT }) do call('SREM', key, worker) end
  if holds_a('string', timer(worker)) then call('DEL', timer(worker)) end
end

-- Removes the queue from a worker, and the worker with its last queue. If workingQueues has a wrong type, its queues are
-- unknown, so the worker stays until the key is repaired.
function layout.unregister(worker)
  local key = working_queues(worker)
  if holds_a('set', key) then call('SREM', key, NAME) end
  if call('EXISTS', key) == 0 then remove_worker(worker) end
end

-- -- the life of a task ------------------------------------------------------------------------------

function layout.add(_, task)
  call('LPUSH', QUEUE, task)
  made_ready = made_ready + 1
  return 'a'
end

function layout.announce(count)
  call('PUBLISH', channel('work'), count)
end

-- Process ids look random to peers. The last fence in the seed makes them unique.
local made = 0
local function new_token(sha1)
  repeat
    made = made + 1
    local seed = table.concat({ STATE, call('HGET', STATE, 'fence') or '', whole(now_us), made }, ' ')
    local token = beginning(sha1) .. string.sub(redis.sha1hex(seed), 1, 12)
    if call('EXISTS', process(token)) == 0 then return token end
  until false
end

-- Identifies the task of a run whatever its process id, so that a suspect stays a suspect.
function layout.same(run)
  return string.sub(run.token, 1, -13)
end

local taken = {} -- in this call: token → task
function layout.take()
  local task = call('LINDEX', QUEUE, -1)
  if not task then return nil end
  local token = new_token(redis.sha1hex(task))
  call('LMOVE', QUEUE, process(token), 'RIGHT', 'LEFT')
  call('SADD', PROCESSES, token)
  call('ZADD', TOKENS, 0, token)
  taken[token] = task
  return token
end

function layout.describe(run)
  local task = taken[run.token] or call('LINDEX', process(run.token), 0)
  return id_of(task), task, ''
end

-- Whoever takes a task back removes it from its process.
function layout.holds(run)
  return holds_a('list', process(run.token))
end

-- A peer that fails a worker may drop a process that has just begun, so every beat lists it again.
function layout.extend(run)
  call('SADD', PROCESSES, run.token)
end

local function unlist(token)
  call('SREM', PROCESSES, token)
  call('ZREM', TOKENS, token)
end

local function end_process(token)
  unlist(token)
  call('HDEL', RUNS, suspect_field({ token = token }))
  return holds_a('list', process(token)) and call('DEL', process(token)) or 0
end

-- RIGHT is the front, where the next task is taken.
local function put_back(token, side)
  while call('LMOVE', process(token), QUEUE, 'LEFT', side) do made_ready = made_ready + 1 end
  unlist(token)
end

-- A peer took the task of this run back.
function layout.lost(run)
  call('ZREM', TOKENS, run.token)
end

-- A text as JSON.stringify writes it: cjson also escapes each slash.
local function as_json(text)
  return (string.gsub(cjson.encode(text), '\\/', '/'))
end

-- `hash` is the MD5 of the task (Lua has none here), then "t" for text or "b" for other bytes.
function layout.complete(run, _, _, hash)
  local task = call('LINDEX', process(run.token), 0)
  end_process(run.token)
  call('DEL', unique_task(string.sub(hash, 1, 32)))
  if string.sub(hash, 33) == 'b' then task = string.gsub(task, '[\128-\255]', '\239\191\189') end
  -- No field `result`: the package leaves it out when a task has none.
  local said = '{"workerId":' .. as_json(run.holder) .. ',"task":' .. as_json(task) .. '}'
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

-- Runs a function with the keys of another queue, because a dead worker may have served several queues.
local function with_queue(queue, work, ...)
  local mine = { STATE, RUNS, HOLDERS, HELD, TOKENS, QUEUE, PROCESSES, NAME, made_ready }
  local ledger = 'windlass:{' .. queue .. '}:worqr:'
  STATE, RUNS, HOLDERS, HELD = ledger .. 'state', ledger .. 'runs', ledger .. 'holders', ledger .. 'held'
  TOKENS = ledger .. 'tokens'
  QUEUE, PROCESSES = PREFIX .. ':queues:' .. queue, PREFIX .. ':workingProcesses:' .. queue
  NAME, made_ready = queue, 0
  work(...)
  if made_ready > 0 then layout.announce(made_ready) end
  STATE, RUNS, HOLDERS, HELD, TOKENS, QUEUE, PROCESSES, NAME, made_ready = unpack(mine)
end

-- Whether all keys of the queue have the right type. If not, recover skips the queue, because it must not fail half-way.
local function is_sound()
  local kinds = {
    [QUEUE] = 'list', [PROCESSES] = 'set', [RUNS] = 'hash', [HOLDERS] = 'zset', [HELD] = 'zset', [TOKENS] = 'zset',
  }
  for key, kind in pairs(kinds) do
    if not holds_a(kind, key) and call('EXISTS', key) == 1 then return false end
  end
  return true
end

-- Takes back the tasks of dead workers on a queue. For a worker in the ledger these are its own runs. The processes of another
-- worker are unknown: like Worqr itself, take back all processes that are not Windlass's. If there are too many for one call,
-- the workers stay listed as dead.
local function recover(dead)
  if not is_sound() then return 0 end
  local before, lost_runs, has_foreign_worker = made_ready, {}, false
  for worker in pairs(dead) do
    local runs = runs_of(worker)
    for _, run in ipairs(runs) do lost_runs[#lost_runs + 1] = run end
    has_foreign_worker = has_foreign_worker or (#runs == 0 and not call('ZSCORE', HOLDERS, worker))
  end
  table.sort(lost_runs, latest_first)
  for _, run in ipairs(lost_runs) do
    if room == 0 then return made_ready - before end
    room = room - 1
    forget(run)
    if layout.holds(run) then layout.stall(run) else layout.lost(run) end
  end
  for _, token in ipairs(has_foreign_worker and call('SMEMBERS', PROCESSES) or {}) do
    if call('HEXISTS', RUNS, fence_field(token)) == 0 and layout.holds({ token = token }) then
      if room == 0 then return made_ready - before end
      room = room - 1
      put_back(token, 'RIGHT')
    end
  end
  for worker in pairs(dead) do
    call('ZREM', HOLDERS, worker)
    call('SREM', working_queues(worker), NAME)
  end
  return made_ready - before
end

-- Drops entries of TOKENS whose task a peer took back, from a bounded sample.
local function prune_tokens()
  if call('ZCARD', TOKENS) <= call('ZCARD', HELD) then return end
  for _, token in ipairs(call('ZRANDMEMBER', TOKENS, 100)) do
    if call('EXISTS', process(token)) == 0 then call('ZREM', TOKENS, token) end
  end
end

-- Every peer recovers every other, on all its queues, this queue first. If very many are dead, each sweep handles some of
-- them and starts at another place, because workers of a damaged queue stay dead.
function layout.sweep()
  prune_tokens()
  local dead, count, queues = {}, 0, { [NAME] = {} }
  local workers = call('SDIFF', WORKERS, PERMANENT)
  for i = 1, #workers do
    local worker = workers[(now + i) % #workers + 1]
    local key = working_queues(worker)
    if not layout.knows(worker) and (holds_a('set', key) or call('EXISTS', key) == 0) then
      dead[worker], count = true, count + 1
      for _, queue in ipairs(call('SMEMBERS', key)) do
        queues[queue] = queues[queue] or {}
        queues[queue][worker] = true
      end
      if count == MAX_ITEMS then break end
    end
  end
  if not next(dead) then return 0 end
  local taken_back = recover(queues[NAME])
  for queue, workers in pairs(queues) do
    if queue ~= NAME then with_queue(queue, recover, workers) end
  end
  for worker in pairs(dead) do
    if call('EXISTS', working_queues(worker)) == 0 then remove_worker(worker) end
  end
  return taken_back
end

-- -- cancelling --------------------------------------------------------------------------------------

-- Windlass workers also receive cancellations that Windlass publishes for peers. This key marks those, so that they are not
-- obeyed a second time.
local function echo(task)
  return 'windlass:{' .. NAME .. '}:worqr:cancelled:' .. redis.sha1hex(task)
end

-- `order` is the MD5 of the id (Lua has none here), then the id. The MD5 of a task whose id is a hash is unknown.
function layout.cancel(order, running)
  local md5, id = string.sub(order, 1, 32), string.sub(order, 33)
  local waiting = waiting_task(id)
  local found, task = works_on(id)
  local told = false
  task = waiting or task
  for _, run in ipairs(running and found or {}) do
    told = told or not run.cancelled
    if run.fence and not run.cancelled then cancel_run(run, id) end
  end
  if waiting then call('LREM', QUEUE, 0, waiting) end
  if task == id and (running or #found == 0) then call('DEL', unique_task(md5)) end
  if running and (task or not is_hash(id)) then
    call('PUBLISH', channel('cancel'), task or id)
    call('SET', echo(task or id), '', 'PX', ECHO_TTL_MS)
  end
  return waiting ~= nil or told
end

-- -- questions ---------------------------------------------------------------------------------------

function layout.counts()
  return { call('LLEN', QUEUE), 0, 0, call('SCARD', PROCESSES), 0, 0 }
end

local function describe_leased(run)
  local task = call('LINDEX', process(run.token), 0)
  return row('running', id_of(task), task, run)
end

-- A running task before a waiting one: callers mostly ask where a task runs.
function layout.find(id)
  local found = works_on(id)
  if found[1] then return describe_leased(found[1]) end
  local task = waiting_task(id)
  return task and row('ready', id, task)
end

function layout.list(state, offset, limit)
  local rows = {}
  if state == 'ready' then
    local tasks = call('LRANGE', QUEUE, -offset - limit, -offset - 1)
    for i = #tasks, 1, -1 do rows[#rows + 1] = row('ready', id_of(tasks[i]), tasks[i]) end
  elseif state == 'running' then
    local all = processes()
    for i = offset + 1, math.min(offset + limit, #all) do rows[#rows + 1] = describe_leased(all[i]) end
  end
  return rows
end

function layout.purge(state)
  local gone, left = 0, 0
  if state == 'ready' or state == 'all' then
    gone = call('LLEN', QUEUE)
    call('UNLINK', QUEUE)
  end
  if state == 'all' then
    for _, token in ipairs(call('SRANDMEMBER', PROCESSES, MAX_ITEMS)) do gone = gone + end_process(token) end
    left = call('SCARD', PROCESSES)
    if left == 0 then
      for _, run in ipairs(all_runs()) do gone = gone + end_process(run.token) end -- runs that a peer took off the list
      call('DEL', TOKENS)
      call('PUBLISH', channel('delete'), '')
    end
  end
  return gone, left
end
