#!lua flags=allow-oom
-- A turn settles and leases in one step: settle outcomes, take back abandoned jobs, lease the next jobs.
--
-- ARGV     [4] holder: a worker's name, or "" for raw leases (a holder of its own is made for each)
--          [5] lease time in ms  [6] how many jobs are wanted  [7] "1": lease only if the holder is known
--          [8] "1": sweep now, even if the last sweep was recent
--          [9…] for each outcome: fence, verb (a function of the layout), a, b, text
--          the last, of a turn that only leases: "1" if no earlier call of this caller may still arrive
-- layout   holds(run): the run still has its job · describe(run) → id, data, meta
--          take(holder, until) → token · stall(run) · sweep(asked) → number of jobs taken back
--          and the verbs: complete, release, retry, fail, broken, crash, unknown, unhandled (run, a, b, text), and snooze
--          if the layout has run times. retry and snooze: a and b are the kind of time and ms (see CHANGE);
--          crash: a is the stalls that the job's task allows, or -1, b the ms until its next attempt.
--          The verb suspect (one of several jobs whose process crashed) is a release
--          due() → ms until the next run time, or nil
--          settings: sweep_every in ms; returns_to_back: whether stall(run) puts a job to the back
-- returns  { a digit for each outcome: 1 accepted, 0 stale (the lease was lost), fence before the first lease, ids, data,
--            META records, ms until the next run time or end of a lease or -1, jobs taken back, 1 if the holder is not known }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local SUSPECT_TTL_MS = 3600000 -- 1 h: a job stays a suspect that long if no Windlass worker sees its end

local holder = ARGV[4]
local lease_ms, wanted = tonumber(ARGV[5]), tonumber(ARGV[6])

local replayed = begin_op()
if replayed then
  if type(replayed) == 'table' then return replayed end
  local flags, base, count, taken_back = string.match(replayed, '^(%d*) (%d+) (%d+) (%d+)$')
  local ids, data, metas = {}, {}, {}
  for i = 1, tonumber(count) do
    local run = run_of(whole(tonumber(base) + i))
    if run then
      ids[i], data[i], metas[i] = describe(run)
    else
      ids[i], data[i], metas[i] = '', false, '' -- the lease was lost meanwhile
    end
  end
  return { flags, base, ids, data, metas, -1, tonumber(taken_back), 0 }
end

local flags = {}
local releases = {}
for at = 9, #ARGV - 4, 5 do
  local run = run_of(ARGV[at])
  flags[#flags + 1] = run and '1' or '0'
  if run then
    forget(run)
    if is_raw(run.holder) then dismiss(run.holder) end
    local verb = ARGV[at + 1]
    if verb == 'crash' or verb == 'suspect' then
      call('HSET', RUNS, suspect_field(run), whole(now + SUSPECT_TTL_MS))
    elseif verb ~= 'release' then
      call('HDEL', RUNS, suspect_field(run)) -- the attempt ended without killing its process
    end
    if verb == 'release' or verb == 'suspect' then
      run.at = at
      releases[#releases + 1] = run
    else
      layout[verb](run, tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), ARGV[at + 4])
    end
  end
end
table.sort(releases, latest_first) -- so that they are in front in their old order
for _, run in ipairs(releases) do layout.release(run, 0, 0, ARGV[run.at + 4]) end

-- Take jobs back: first those of lost holders, in their old order, then those that the layout itself finds abandoned.
local taken_back = 0
local lost = call('ZRANGE', HOLDERS, '-inf', now, 'BYSCORE', 'LIMIT', 0, MAX_ITEMS)
if #lost > 0 then
  local lost_runs = {}
  for _, name in ipairs(lost) do
    for _, run in ipairs(runs_of(name)) do lost_runs[#lost_runs + 1] = run end
  end
  table.sort(lost_runs, latest_first)
  -- Jobs that go to the front are put back latest first, jobs that go to the back earliest first: both keep their order.
  local count = math.min(#lost_runs, MAX_ITEMS)
  for i = 1, count do
    local run = lost_runs[layout.returns_to_back and #lost_runs + 1 - i or i]
    local ours = layout.holds(run)
    forget(run)
    if ours then
      layout.stall(run)
      taken_back = taken_back + 1
    end
  end
  if count == #lost_runs then -- else they stay lost until the next turn takes back the rest
    for _, name in ipairs(lost) do dismiss(name) end
  end
end
local swept = tonumber(call('HGET', STATE, 'swept') or 0)
local sweeps = ARGV[8] == '1' or now - swept >= layout.sweep_every or swept > now
if sweeps then
  taken_back = taken_back + layout.sweep(ARGV[8] == '1')
  -- Drop expired suspect fields, from a bounded sample: their jobs were cancelled or ended by other programs.
  local some = call('HRANDFIELD', RUNS, 20, 'WITHVALUES')
  for i = 1, #some, 2 do
    if string.sub(some[i], 1, 1) == '?' and tonumber(some[i + 1]) <= now then call('HDEL', RUNS, some[i]) end
  end
end

local ids, data, metas = {}, {}, {}
local base = math.max(tonumber(call('HGET', STATE, 'fence') or 0), now_us)
local unknown = wanted > 0 and ARGV[7] == '1' and not is_known(holder)
local bytes = 0
while not unknown and #ids < wanted and bytes < MAX_REPLY_BYTES do
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

-- An empty turn changes nothing, so a retry needs no recorded answer.
local is_empty = #flags == 0 and #ids == 0 and taken_back == 0
local is_gone = is_empty and is_idle() and delete_ledger(#ARGV == 9 and ARGV[1] or nil)
if sweeps and not is_gone then
  call('HSET', STATE, 'swept', whole(now))
  keep_for(DAY_MS) -- commit_op does this only for turns that change something
end
if not is_empty then
  commit_op(table.concat(flags) .. ' ' .. whole(base) .. ' ' .. #ids .. ' ' .. taken_back)
  if #ids > 0 then keep_for(2 * lease_ms) end
end
announce()
return { table.concat(flags), whole(base), ids, data, metas, wait, taken_back, unknown and 1 or 0 }
