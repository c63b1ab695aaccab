#!lua flags=no-writes
-- uses rows
-- One page of the jobs of a state: ready and scheduled in the order in which they will run, leased and blocked by holder,
-- dead and broken latest first.
--
-- ARGV     [1] state  [2] cursor: "" to begin, else as the page before returned it  [3] rows at most
-- returns  { cursor of the next page or "", rows (see shared/rows.lua; blocked: the BLOCKED record as data) }
-- errors   FORMAT, WRONGTYPE

read_state()
wall_clock()
due = wall - state.skew
local what, cursor, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local rows, following, full = {}, '', false

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
  local low, high = read('ZCOUNT', key, '-inf', '(' .. score), read('ZCOUNT', key, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if before(read('ZRANGE', key, middle, middle)[1], member) then low = middle + 1 else high = middle end
  end
  return low
end

local last_score, last_member = string.match(cursor, '^([^ ]+) (.*)$')

if what == 'ready' then
  local found = read('ZRANGE', READY, cursor == '' and '-inf' or '(' .. cursor, '+inf', 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
  full = #found == 2 * limit
  for i = 1, #found, 2 do
    rows[#rows + 1] = ready_row(found[i], found[i + 1])
    following = found[i + 1]
  end
elseif what == 'scheduled' then
  local from = 0
  if last_score then
    from = rank_of(SCHEDULED, last_score, last_member)
    if read('ZSCORE', SCHEDULED, last_member) == last_score then from = from + 1 end
  end
  local found = read('ZRANGE', SCHEDULED, from, from + limit - 1, 'WITHSCORES')
  full = #found == 2 * limit
  for i = 1, #found, 2 do
    rows[#rows + 1] = scheduled_row(string.sub(found[i], 9), found[i + 1])
    following = found[i + 1] .. ' ' .. found[i]
  end
elseif what == 'dead' or what == 'broken' then
  local key = what == 'dead' and DEAD or BROKEN
  local from = last_score and read('ZCARD', key) - rank_of(key, last_score, last_member) or 0
  local found = read('ZRANGE', key, from, from + limit - 1, 'REV', 'WITHSCORES')
  full = #found == 2 * limit
  for i = 1, #found, 2 do
    local row = dead_row(what, found[i])
    if row[3] then rows[#rows + 1] = row end
    following = found[i + 1] .. ' ' .. found[i]
  end
else
  -- Every blocked change waits behind a leased job, so both states are read along `held`. A page may have few rows, or none,
  -- and still a next page.
  local found = read('ZRANGE', HELD, cursor == '' and '-' or '(' .. cursor, '+', 'BYLEX', 'LIMIT', 0, limit)
  full = #found == limit
  for _, member in ipairs(found) do
    local id = string.sub(member, (string.find(member, '%z') or 0) + 1)
    local record = read('HGET', what == 'leased' and LEASES or BLOCKED, id)
    if record then rows[#rows + 1] = what == 'leased' and leased_row(id, record) or { 'blocked', id, record } end
    following = member
  end
end
return { full and following or '', rows }
