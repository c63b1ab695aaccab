-- What does not fit. A part of the queue is compared with the others, a bounded number of entries a call; what is amiss is
-- counted, named, and mended where it is to be. `audit` mends and `inspect` only looks: both judge by this one text, and by
-- the drift.lua of the layout, if it has one, which adds parts of its own. The parts of the ledger:
--
--   runs   a run that nobody holds, or that no mark leads to → listed again; one whose job a later run has → forgotten;
--          its holder unknown → made known, and lost at once; marks and notes of no run → dropped
--   held   an entry with no run → dropped
--
-- Where peers of another make are at work, a look may meet what one of them does just now in two commands.

local EXAMPLES = 10 -- that one call names
local mends = false
local amiss, mended, named, jobs = 0, 0, {}, 0
local compare = {} -- part → function(cursor) → next cursor, "0" at the end

-- Something is amiss. Whether it is to be mended, now.
local function find(kind, id)
  amiss = amiss + 1
  if #named < 2 * EXAMPLES then
    named[#named + 1] = kind
    named[#named + 1] = id
  end
  if mends then mended = mended + 1 end
  return mends
end

-- Jobs that are in none of some lists. To look for one is to walk through a list, so many are gathered and looked for in one
-- walk, of which a call does a bounded part. What is still looked for is kept by the caller, in the cursor: which is { where to
-- gather on, which list or 0 while batcher, where in it, ids }. `gather(cursor)` gives { the next cursor, ids }. Entries move while
-- we walk, so the caller is to look once more at those that are returned.
local BATCH, PAGE, PAGES = 2000, 1000, 4

local function search(lists, cursor, gather)
  local from, which, at, ids = '0', 0, 0, {}
  if cursor ~= '0' then from, which, at, ids = unpack(cmsgpack.unpack(cursor)) end
  if which == 0 then
    local more
    from, more = gather(from)
    for _, id in ipairs(more) do ids[#ids + 1] = id end
    if #ids >= BATCH or from == '0' then which = 1 end
    return (#ids > 0 or from ~= '0') and cmsgpack.pack({ from, which, 0, ids }) or '0', {}
  end
  local wanted, left, rest = {}, 0, {}
  for _, id in ipairs(ids) do
    if not wanted[id] then wanted[id], left = true, left + 1 end
  end
  for _ = 1, PAGES do
    if left == 0 or which > #lists then break end
    local entries = call('LRANGE', lists[which], at, at + PAGE - 1)
    for _, id in ipairs(entries) do
      if wanted[id] then wanted[id], left = nil, left - 1 end
    end
    at = at + #entries
    if #entries < PAGE then which, at = which + 1, 0 end
  end
  for id in pairs(wanted) do rest[#rest + 1] = id end
  if left > 0 and which <= #lists then return cmsgpack.pack({ from, which, at, rest }), {} end
  return from == '0' and '0' or cmsgpack.pack({ from, 0, 0, {} }), rest
end

local function run_at(fence)
  local text = call('HGET', RUNS, fence)
  return text and string.find(text, '\0', 1, true) and read_run(fence, text) or nil
end

local function compare_run(fence)
  local run = run_at(fence)
  if not run then
    if find('no record', fence) then call('HDEL', RUNS, fence) end
    return
  end
  local mark, member = pointer(run.token), run.holder .. '\0' .. fence
  local other = call('HGET', RUNS, mark)
  if other ~= fence then
    local later = other and run_at(other)
    if later and pointer(later.token) == mark then
      if find('a later run has its job', fence) then
        call('HDEL', RUNS, fence)
        call('ZREM', HELD, member)
      end
      return
    end
    if find('no mark leads to it', fence) then call('HSET', RUNS, mark, fence) end
  end
  if not call('ZSCORE', HELD, member) and find('nobody holds it', fence) then call('ZADD', HELD, 0, member) end
  if not call('ZSCORE', HOLDERS, run.holder) and find('holder unknown', run.holder) then
    call('ZADD', HOLDERS, whole(now), run.holder)
  end
  if layout.compare_run then layout.compare_run(run) end
end

local function compare_mark(field, fence)
  local run = run_at(fence)
  if (not run or pointer(run.token) ~= field) and find('mark of no run', fence) then
    call('HDEL', RUNS, field, '@' .. string.sub(field, 2))
  end
end

function compare.runs(cursor)
  for _, number in ipairs(cursor == '0' and layout.counts() or {}) do jobs = jobs + number end
  local found = call('HSCAN', RUNS, cursor, 'COUNT', 100)
  for i = 1, #found[2], 2 do
    local field, kind = found[2][i], string.sub(found[2][i], 1, 1)
    if kind == '=' then
      compare_mark(field, found[2][i + 1])
    elseif kind == '@' then
      local run = '=' .. string.sub(field, 2)
      if call('HEXISTS', RUNS, run) == 0 and find('note of no run', field) then call('HDEL', RUNS, field) end
    elseif kind ~= '?' then
      compare_run(field)
    end
  end
  return found[1]
end

function compare.held(cursor)
  local found = call('ZSCAN', HELD, cursor, 'COUNT', 100)
  for i = 1, #found[2], 2 do
    local member = found[2][i]
    local fence = string.match(member, '%z(%d+)$')
    local run = fence and run_at(fence)
    if not (run and run.holder .. '\0' .. fence == member) and find('no run', member) then call('ZREM', HELD, member) end
  end
  return found[1]
end

-- One bounded step: { next cursor or "0", jobs looked at, things amiss, things mended, kind and id of some of them }
local function compare_some(part, cursor)
  local following = compare[part](cursor)
  return { following, jobs, amiss, mended, named }
end
