-- Inconsistencies in the ledger. Each call compares a bounded number of entries of one part with the other keys, counts and
-- names the problems, and repairs them for `audit`. `inspect` uses the same code and only reports. The problems.lua of a layout
-- adds parts of its own. The parts of the ledger:
--
--   runs   run in no holder's list, or not indexed by its token → indexed again; replaced by a later run → dropped;
--          unknown holder → registered as already lost; index entries and notes without a run → dropped
--   held   entry without a run → dropped
--
-- Other systems' programs change their keys in several commands, so a check may report a change that is half done.

local MAX_EXAMPLES = 10 -- problems that one call names: keeps the reply small
local repairing = false
local problems, repaired, examples, jobs = 0, 0, {}, 0
local compare = {} -- part → function(cursor) → next cursor, "0" at the end

-- Counts and names a problem. Returns whether the caller must repair it.
local function report(kind, id)
  problems = problems + 1
  if #examples < 2 * MAX_EXAMPLES then
    examples[#examples + 1] = kind
    examples[#examples + 1] = id
  end
  if repairing then repaired = repaired + 1 end
  return repairing
end

-- Finds jobs that are in none of some lists. Searching a list means walking through it, so this collects many ids and searches
-- them in one walk, a bounded part of it per call. The cursor carries the search from call to call: { where to collect next,
-- which list or 0 while collecting, position in it, ids }. `gather(cursor)` returns the next cursor and ids. Entries move
-- during the walk, so the caller must check the returned ids once more.
local SEARCH_BATCH, PAGE_SIZE, MAX_PAGES = 2000, 1000, 4

local function search(lists, cursor, gather)
  local from, which, at, ids = '0', 0, 0, {}
  if cursor ~= '0' then from, which, at, ids = unpack(cmsgpack.unpack(cursor)) end
  if which == 0 then
    local more
    from, more = gather(from)
    for _, id in ipairs(more) do ids[#ids + 1] = id end
    if #ids >= SEARCH_BATCH or from == '0' then which = 1 end
    return (#ids > 0 or from ~= '0') and cmsgpack.pack({ from, which, 0, ids }) or '0', {}
  end
  local wanted, left, rest = {}, 0, {}
  for _, id in ipairs(ids) do
    if not wanted[id] then wanted[id], left = true, left + 1 end
  end
  for _ = 1, MAX_PAGES do
    if left == 0 or which > #lists then break end
    local entries = call('LRANGE', lists[which], at, at + PAGE_SIZE - 1)
    for _, id in ipairs(entries) do
      if wanted[id] then wanted[id], left = nil, left - 1 end
    end
    at = at + #entries
    if #entries < PAGE_SIZE then which, at = which + 1, 0 end
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
    if report('no record', fence) then call('HDEL', RUNS, fence) end
    return
  end
  local mark, member = fence_field(run.token), run.holder .. '\0' .. fence
  local other = call('HGET', RUNS, mark)
  if other ~= fence then
    local later = other and run_at(other)
    if later and fence_field(later.token) == mark then
      if report('replaced by a later run', fence) then
        call('HDEL', RUNS, fence)
        call('ZREM', HELD, member)
      end
      return
    end
    if report('not indexed', fence) then call('HSET', RUNS, mark, fence) end
  end
  if not call('ZSCORE', HELD, member) and report('no holder', fence) then call('ZADD', HELD, 0, member) end
  if not call('ZSCORE', HOLDERS, run.holder) and report('holder unknown', run.holder) then
    call('ZADD', HOLDERS, whole(now), run.holder)
  end
  if layout.compare_run then layout.compare_run(run) end
end

local function compare_mark(field, fence)
  local run = run_at(fence)
  if (not run or fence_field(run.token) ~= field) and report('index entry without run', fence) then
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
      if call('HEXISTS', RUNS, run) == 0 and report('note without run', field) then call('HDEL', RUNS, field) end
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
    if not (run and run.holder .. '\0' .. fence == member) and report('no run', member) then call('ZREM', HELD, member) end
  end
  return found[1]
end

-- Compares a bounded part. Returns { next cursor or "0", jobs checked, problems, repaired, kind and id of some problems }.
local function audit_batch(part, cursor)
  local following = compare[part](cursor)
  return { following, jobs, problems, repaired, examples }
end
