#!lua flags=allow-oom
-- One turn of a worker's wheel in one step: settle what is done, take back what was abandoned, lease the next jobs.
--
-- ARGV     [4] holder: a worker's name, or "" for raw leases (a holder of its own is made for each)
--          [5] lease time in ms  [6] how many jobs are wanted  [7] "1": lease only if the holder is known
--          [8] "1": sweep now, whenever it was done last
--          [9…] for each outcome: fence, verb (a function of the layout), a, b, text
-- layout   holds(run): nobody else has it or may take it · describe(run) → id, data, meta
--          take(holder, until) → token · stall(run) · sweep(asked) → how many came back
--          and the verbs: complete, release, retry, fail, broken, crash, unknown, unhandled (run, a, b, text);
--          crash only where it certainly was this job: a is 1, b the crashes that its task allows, or -1
--          due() → ms until something happens by itself, or nil
--          settings: sweep_every in ms; returns_to_back: where stall(run) puts a job
-- returns  { a digit for each outcome: 1 it was still ours, fence before the first lease, ids, data, META records,
--            ms until something happens by itself or -1, jobs taken back, 1 when the holder is not known }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local MOST_BYTES = 8 * 1024 * 1024 -- of payloads in one reply
local SUSPECTED = 3600000 -- ms for which a job is suspected that nobody here sees the end of
local MOST = 1000 -- jobs that are taken back from lost holders in one turn

local holder = ARGV[4]
local lease_ms, wanted = tonumber(ARGV[5]), tonumber(ARGV[6])

local replayed = open()
if replayed then
  if type(replayed) == 'table' then return replayed end
  local flags, base, count, taken_back = string.match(replayed, '^(%d*) (%d+) (%d+) (%d+)$')
  local ids, data, metas = {}, {}, {}
  for i = 1, tonumber(count) do
    local run = run_of(whole(tonumber(base) + i))
    if run then
      ids[i], data[i], metas[i] = describe(run)
    else
      ids[i], data[i], metas[i] = '', false, '' -- not ours any more
    end
  end
  return { flags, base, ids, data, metas, -1, tonumber(taken_back), 0 }
end

local flags = {}
local releases = {}
for at = 9, #ARGV, 5 do
  local run = run_of(ARGV[at])
  flags[#flags + 1] = run and '1' or '0'
  if run then
    forget(run)
    if is_raw(run.holder) then dismiss(run.holder) end
    local verb = ARGV[at + 1]
    local crashed = verb == 'crash'
    if crashed then
      call('HSET', RUNS, suspicion(run), whole(now + SUSPECTED))
    elseif verb ~= 'release' then
      call('HDEL', RUNS, suspicion(run)) -- it came to an end by itself
    end
    if verb == 'release' or (crashed and ARGV[at + 2] == '0') then -- one of several suspects is charged nothing
      run.at = at
      releases[#releases + 1] = run
    else
      layout[verb](run, tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), ARGV[at + 4])
    end
  end
end
table.sort(releases, latest_first) -- so that they are in front in their old order
for _, run in ipairs(releases) do layout.release(run, 0, 0, ARGV[run.at + 4]) end

-- What lost holders had goes back, in the old order; then what the layout itself finds abandoned.
local taken_back = 0
local lost = call('ZRANGE', HOLDERS, '-inf', now, 'BYSCORE', 'LIMIT', 0, MOST)
if #lost > 0 then
  local theirs = {}
  for _, name in ipairs(lost) do
    for _, run in ipairs(runs_of(name)) do theirs[#theirs + 1] = run end
  end
  table.sort(theirs, latest_first)
  -- The first to be put back is the last to be taken where they go to the front, and the first where they go to the back.
  local count = math.min(#theirs, MOST)
  for i = 1, count do
    local run = theirs[layout.returns_to_back and #theirs + 1 - i or i]
    local ours = layout.holds(run)
    forget(run)
    if ours then
      layout.stall(run)
      taken_back = taken_back + 1
    end
  end
  if count == #theirs then -- else they are known as lost until the rest is back
    for _, name in ipairs(lost) do dismiss(name) end
  end
end
local swept = tonumber(call('HGET', STATE, 'swept') or 0)
if ARGV[8] == '1' or now - swept >= layout.sweep_every or swept > now then
  taken_back = taken_back + layout.sweep(ARGV[8] == '1')
  call('HSET', STATE, 'swept', whole(now))
  -- Marks of jobs that were cancelled, or ended by others: a bounded sample of them.
  local some = call('HRANDFIELD', RUNS, 20, 'WITHVALUES')
  for i = 1, #some, 2 do
    if string.sub(some[i], 1, 1) == '?' and tonumber(some[i + 1]) <= now then call('HDEL', RUNS, some[i]) end
  end
  keep_for(DAY) -- of a queue that is only looked at, nothing else would
end

local ids, data, metas = {}, {}, {}
local base = math.max(tonumber(call('HGET', STATE, 'fence') or 0), now_us)
local unknown = wanted > 0 and ARGV[7] == '1' and not is_known(holder)
local bytes = 0
while not unknown and #ids < wanted and bytes < MOST_BYTES do
  local fence = whole(base + #ids + 1)
  local name = holder ~= '' and holder or '.' .. fence
  local token = layout.take(name, deadline(name, now + lease_ms))
  if not token then break end
  local run = { fence = fence, holder = name, token = token }
  remember(run)
  call('ZADD', HOLDERS, 'GT', whole(now + lease_ms), name)
  if layout.beat then layout.beat(name, now + lease_ms, true) end
  local at = #ids + 1
  ids[at], data[at], metas[at] = describe(run)
  bytes = bytes + #data[at]
end
if #ids > 0 then
  call('HSET', STATE, 'fence', whole(base + #ids))
end

local wait = layout.due and layout.due() or -1
local first = call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')[2]
if first then
  local left = math.max(1, tonumber(first) + 1 - now)
  wait = (wait < 0 or left < wait) and left or wait
end

-- A look in vain writes nothing that must be remembered: repeated, it is just another look.
if #flags > 0 or #ids > 0 or taken_back > 0 then
  close(table.concat(flags) .. ' ' .. whole(base) .. ' ' .. #ids .. ' ' .. taken_back)
  if #ids > 0 then keep_for(2 * lease_ms) end
end
announce()
return { table.concat(flags), whole(base), ids, data, metas, wait, taken_back, unknown and 1 or 0 }
