-- Worqr's own part; layout.py has its key map. The token of a run is its process id: the queue, "_", a UUID. Ours begin
-- with the SHA-1 of the task, so TOKENS, a sorted set of them with all scores 0, tells who of us works on a task.
--
-- KEYS   [4…8] of its peers  [9] TOKENS  then what its peers know of each worker that the call is for: its queues, its timer

local QUEUE, PROCESSES, WORKERS, EXPIRING, PERMANENT = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local TOKENS = KEYS[9]
local PREFIX = string.match(WORKERS, '^(.*):workers$')
local NAME = string.sub(QUEUE, #PREFIX + #':queues:' + 1)
local room = 1000 -- tasks that this call may still take back
local LONGEST_ID = 512
local MOST = 1000
local ECHO = 3000 -- ms in which we may hear what we said ourselves
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

-- How the process ids of our own begin for a task of this SHA-1: a UUID, all but its last part.
local function beginning(sha1)
  local parts = {
    string.sub(sha1, 1, 8), string.sub(sha1, 9, 12), '4' .. string.sub(sha1, 13, 15), 'a' .. string.sub(sha1, 16, 18), '',
  }
  return NAME .. '_' .. table.concat(parts, '-')
end

local function first_first(a, b)
  return tonumber(a.fence or 'inf') < tonumber(b.fence or 'inf')
end

-- All that works on a task of this id: our own runs in their order, then the processes of others as { token = … }; and
-- the task. Of ours there is an index; of others each one is looked at.
local function works_on(id)
  local found, task = {}, nil
  local function look(tokens)
    for _, token in ipairs(tokens) do
      local one = task_in(token, id)
      local fence = one and call('HGET', RUNS, pointer(token))
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
  table.sort(found, first_first)
  return found, task
end

-- All that is worked on: our own runs in their order, then the processes of others as { token = … }.
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

-- The index goes by itself some time after the last run of ours.
local function keep_tokens(ends)
  local ms = whole(math.max(DAY, 2 * (ends - now)))
  call('PEXPIRE', TOKENS, ms, 'NX')
  call('PEXPIRE', TOKENS, ms, 'GT')
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
  keep_tokens(ends)
  if call('PTTL', timer(worker)) < ends - now then call('SET', timer(worker), 'RUN', 'PX', whole(ends - now)) end
  beaten[worker] = true
  return true
end

local function remove_worker(worker)
  for _, key in ipairs({ WORKERS, EXPIRING, PERMANENT }) do call('SREM', key, worker) end
  if holds_a('string', timer(worker)) then call('DEL', timer(worker)) end
end

-- Stops work on this queue; a worker without any queue is none any more. Where its queues should be and something else
-- is, nobody knows which they are: it stays until somebody has mended that.
function layout.retire(worker)
  local key = working_queues(worker)
  if holds_a('set', key) then call('SREM', key, NAME) end
  if call('EXISTS', key) == 0 then remove_worker(worker) end
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
local function new_token(sha1)
  repeat
    made = made + 1
    local seed = table.concat({ STATE, call('HGET', STATE, 'fence') or '', whole(now_us), made }, ' ')
    local token = beginning(sha1) .. string.sub(redis.sha1hex(seed), 1, 12)
    if call('EXISTS', process(token)) == 0 then return token end
  until false
end

-- A task is the same whatever its process is called: a suspect stays one.
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

-- Who takes a task back takes it out of its process.
function layout.holds(run)
  return holds_a('list', process(run.token))
end

-- A peer that fails a worker may forget a process that was begun meanwhile: it is put on the list again.
function layout.extend(run)
  call('SADD', PROCESSES, run.token)
end

local function unlist(token)
  call('SREM', PROCESSES, token)
  call('ZREM', TOKENS, token)
end

local function end_process(token)
  unlist(token)
  call('HDEL', RUNS, suspicion({ token = token }))
  return holds_a('list', process(token)) and call('DEL', process(token)) or 0
end

-- To the front is to the right, where the next one is taken.
local function put_back(token, side)
  while call('LMOVE', process(token), QUEUE, 'LEFT', side) do came = came + 1 end
  unlist(token)
end

-- A peer took it back.
function layout.lost(run)
  call('ZREM', TOKENS, run.token)
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
  local mine = { STATE, RUNS, HOLDERS, HELD, TOKENS, QUEUE, PROCESSES, NAME, came }
  local ledger = 'windlass:{' .. queue .. '}:worqr:'
  STATE, RUNS, HOLDERS, HELD = ledger .. 'state', ledger .. 'runs', ledger .. 'holders', ledger .. 'held'
  TOKENS = ledger .. 'tokens'
  QUEUE, PROCESSES = PREFIX .. ':queues:' .. queue, PREFIX .. ':workingProcesses:' .. queue
  NAME, came = queue, 0
  work(...)
  if came > 0 then layout.announce(came) end
  STATE, RUNS, HOLDERS, HELD, TOKENS, QUEUE, PROCESSES, NAME, came = unpack(mine)
end

-- Nothing must fail in the midst of it: a queue whose keys hold something else is left alone.
local function is_sound()
  local kinds = {
    [QUEUE] = 'list', [PROCESSES] = 'set', [RUNS] = 'hash', [HOLDERS] = 'zset', [HELD] = 'zset', [TOKENS] = 'zset',
  }
  for key, kind in pairs(kinds) do
    if not holds_a(kind, key) and call('EXISTS', key) == 1 then return false end
  end
  return true
end

-- What dead workers left on a queue comes back. Of a worker that the ledger knows these are its own runs. Of another
-- nobody knows which processes it had: all come back that are none of ours, as its own package does it. If it is too much
-- for one call the workers stay on the list of the dead.
local function recover(dead)
  if not is_sound() then return 0 end
  local before, theirs, strangers = came, {}, false
  for worker in pairs(dead) do
    local runs = runs_of(worker)
    for _, run in ipairs(runs) do theirs[#theirs + 1] = run end
    strangers = strangers or (#runs == 0 and not call('ZSCORE', HOLDERS, worker))
  end
  table.sort(theirs, latest_first)
  for _, run in ipairs(theirs) do
    if room == 0 then return came - before end
    room = room - 1
    forget(run)
    if layout.holds(run) then layout.stall(run) else layout.lost(run) end
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

-- An index entry of what a peer took back before its worker was lost: some are looked at now and then.
local function prune_tokens()
  if call('ZCARD', TOKENS) <= call('ZCARD', HELD) then return end
  for _, token in ipairs(call('ZRANDMEMBER', TOKENS, 100)) do
    if call('EXISTS', process(token)) == 0 then call('ZREM', TOKENS, token) end
  end
end

-- Any peer recovers any other, on all queues that it worked on: on this one first, for its tasks are asked for. Where
-- very many are dead it is some of them, from another place on each time: those of a damaged queue stay dead.
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
      if count == MOST then break end
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

-- -- cancelling --------------------------------------------------------------------------------------

-- Our workers hear what we say to peers, too, and must not take it for another cancellation.
local function echo(task)
  return 'windlass:{' .. NAME .. '}:worqr:cancelled:' .. redis.sha1hex(task)
end

-- `order` is the MD5 of the id, for there is none here, and the id. That of a task whose id is a hash is not known.
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
    call('SET', echo(task or id), '', 'PX', ECHO)
  end
  return waiting ~= nil or told
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
  elseif state == 'leased' then
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
    for _, token in ipairs(call('SRANDMEMBER', PROCESSES, MOST)) do gone = gone + end_process(token) end
    left = call('SCARD', PROCESSES)
    if left == 0 then
      for _, run in ipairs(all_runs()) do gone = gone + end_process(run.token) end -- what a peer forgot
      call('DEL', TOKENS)
      call('PUBLISH', channel('delete'), '')
    end
  end
  return gone, left
end
