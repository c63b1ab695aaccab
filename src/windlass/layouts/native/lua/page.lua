#!lua flags=no-writes
-- One page of the jobs of a state, in the order in which they come: ready and scheduled as they will run,
-- leased by holder, dead latest first, blocked in no order.
--
-- ARGV     [1] state  [2] cursor: "" to begin, else what the page before returned  [3] rows at most
-- returns  { cursor of the next page or "", rows (see the end of the prelude; blocked: the BLOCKED record as data) }
-- errors   WRONGTYPE

read_state()
wall_clock()
due = wall - state.skew
local what, cursor, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
local rows, following, full = {}, '', false

-- Where a page by (score, member) begins: behind the last member, or, when that is gone, at its score.
local function rank_after(key, rank_command, count_from, count_to)
  if cursor == '' then return 0 end
  local member = string.match(cursor, '^[^ ]+ (.*)$')
  local rank = call(rank_command, key, member)
  return rank and rank + 1 or call('ZCOUNT', key, count_from, count_to)
end

local last_score = string.match(cursor, '^([^ ]+) ')
if what == 'ready' then
  local found = call('ZRANGE', READY, cursor == '' and '-inf' or '(' .. cursor, '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
  full = #found == 2 * most
  for i = 1, #found, 2 do
    rows[#rows + 1] = ready_row(found[i], found[i + 1])
    following = found[i + 1]
  end
elseif what == 'scheduled' then
  local from = rank_after(SCHEDULED, 'ZRANK', '-inf', '(' .. (last_score or ''))
  local found = call('ZRANGE', SCHEDULED, from, from + most - 1, 'WITHSCORES')
  full = #found == 2 * most
  for i = 1, #found, 2 do
    rows[#rows + 1] = scheduled_row(string.sub(found[i], 9), found[i + 1])
    following = found[i + 1] .. ' ' .. found[i]
  end
elseif what == 'dead' then
  local from = rank_after(DEAD, 'ZREVRANK', '(' .. (last_score or ''), '+inf')
  local found = call('ZRANGE', DEAD, from, from + most - 1, 'REV', 'WITHSCORES')
  full = #found == 2 * most
  for i = 1, #found, 2 do
    local row = dead_row(found[i])
    if row[3] then rows[#rows + 1] = row end
    following = found[i + 1] .. ' ' .. found[i]
  end
elseif what == 'leased' then
  local found = call('ZRANGE', HELD, cursor == '' and '-' or '(' .. cursor, '+', 'BYLEX', 'LIMIT', 0, most)
  full = #found == most
  for _, member in ipairs(found) do
    local id = string.sub(member, (string.find(member, '%z') or 0) + 1)
    local lease = call('HGET', LEASES, id)
    if lease then rows[#rows + 1] = leased_row(id, lease) end
    following = member
  end
else
  local found = call('HSCAN', BLOCKED, cursor == '' and '0' or cursor, 'COUNT', most)
  for i = 1, #found[2], 2 do
    rows[#rows + 1] = { 'blocked', found[2][i], found[2][i + 1] }
  end
  following = found[1] == '0' and '' or found[1]
  return { following, rows }
end
return { full and following or '', rows }
