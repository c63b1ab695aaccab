#!lua flags=no-writes
-- uses meta dead_record changes job_rows
-- One page of the jobs of a state: ready and scheduled in the order in which they will run, running and blocked by holder,
-- dead and broken latest first.
--
-- With a tag, a page has the jobs with this tag among the next MAX_ITEMS: it may have few rows, or none, and still a next
-- page.
--
-- ARGV     [1] state  [2] cursor: "" to begin, else as the page before returned it  [3] rows at most  [4] a tag, or ""
-- returns  { cursor of the next page or "", rows (see shared/job_rows.lua; blocked: the BLOCKED record as data) }
-- errors   FORMAT, WRONGTYPE

read_state()
wall_clock()
due = wall - state.skew
local what, cursor, limit, tag = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local searched = tag == '' and limit or MAX_ITEMS -- entries that this page looks at
local searched_bytes = 0
local rows, following = {}, ''
local more = false -- whether entries may follow

-- Compares byte by byte like the server (Lua's own comparison follows the locale).
local function before(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then return a < b end
  end
  return #one < #other
end

-- How many members come before (score, member), which itself may be gone. Binary search among the members with this score.
local function rank_of(key, score, member)
  local low, high = checked_call('ZCOUNT', key, '-inf', '(' .. score), checked_call('ZCOUNT', key, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if before(checked_call('ZRANGE', key, middle, middle)[1], member) then low = middle + 1 else high = middle end
  end
  return low
end

-- Whether a job has the tag, by the record that has its options.
local function has_tag(id)
  local extras
  if what == 'dead' or what == 'broken' then
    local text = checked_call('HGET', DEAD_RECORDS, id) or ''
    local m = read_dead_record(text)
    extras, searched_bytes = m and m.extras, searched_bytes + #text
  elseif what == 'blocked' then
    local text = checked_call('HGET', BLOCKED, id) or ''
    extras, searched_bytes = read_change(text).extras, searched_bytes + #text
  else
    extras = read_meta(checked_call('HGET', META, id)).extras
  end
  for _, each in ipairs(tags_of(extras)) do
    if each == tag then return true end
  end
  return false
end

-- Adds the row of an entry, if its job has the tag. Returns whether the page ends behind this entry.
local function add(position, id, row_of, ...)
  following = position
  if tag == '' or has_tag(id) then
    local row = row_of(...)
    if row then rows[#rows + 1] = row end
  end
  return tag ~= '' and (#rows == limit or searched_bytes > MAX_REPLY_BYTES)
end

-- The row of a running job, or of the change that waits behind it; nil if it has none.
local function held_row(id)
  local record = checked_call('HGET', what == 'running' and LEASES or BLOCKED, id)
  return record and (what == 'running' and leased_row(id, record) or { 'blocked', id, record })
end

local last_score, last_member = string.match(cursor, '^([^ ]+) (.*)$')

if what == 'ready' then
  local found = checked_call('ZRANGE', READY, cursor == '' and '-inf' or '(' .. cursor, '+inf', 'BYSCORE', 'LIMIT', 0, searched, 'WITHSCORES')
  more = #found == 2 * searched
  for i = 1, #found, 2 do
    local id, score = found[i], found[i + 1]
    if add(score, id, ready_row, id, score) then more = true break end
  end
elseif what == 'scheduled' then
  local from = 0
  if last_score then
    from = rank_of(SCHEDULED, last_score, last_member)
    if checked_call('ZSCORE', SCHEDULED, last_member) == last_score then from = from + 1 end
  end
  local found = checked_call('ZRANGE', SCHEDULED, from, from + searched - 1, 'WITHSCORES')
  more = #found == 2 * searched
  for i = 1, #found, 2 do
    local member, run_at = found[i], found[i + 1]
    local id = string.sub(member, 9)
    if add(run_at .. ' ' .. member, id, scheduled_row, id, run_at) then more = true break end
  end
elseif what == 'dead' or what == 'broken' then
  local key = what == 'dead' and DEAD or BROKEN
  local from = last_score and checked_call('ZCARD', key) - rank_of(key, last_score, last_member) or 0
  local found = checked_call('ZRANGE', key, from, from + searched - 1, 'REV', 'WITHSCORES')
  more = #found == 2 * searched
  for i = 1, #found, 2 do
    local id = found[i]
    if add(found[i + 1] .. ' ' .. id, id, dead_row, what, id) then more = true break end
  end
else
  -- Every blocked change waits behind a running job, so both states are read along `held`. A page may have few rows, or none,
  -- and still a next page.
  local found = checked_call('ZRANGE', HELD, cursor == '' and '-' or '(' .. cursor, '+', 'BYLEX', 'LIMIT', 0, searched)
  more = #found == searched
  for i, member in ipairs(found) do
    local id = string.sub(member, (string.find(member, '%z') or 0) + 1)
    if add(member, id, held_row, id) then more = true break end
  end
end
return { more and following or '', rows }
