#!lua flags=no-writes
-- One page of the jobs of a state: ready ones in the order in which they will be taken, running ones by their last sign of life.
--
-- ARGV     [2] state  [3] cursor: "" to begin, else as the page before returned it  [4] rows at most
-- returns  { cursor of the next page or "", rows }
-- errors   WRONGTYPE
--
-- Jobs come and go between two pages, so a cursor names the last entries seen. In a list these are several uuids, because
-- some may be gone (if all are gone, so are all entries before them). In a sorted set it is score and member.

SETTING = ARGV[1]
local MAX_ANCHORS = 10 -- uuids in a cursor: that all of them go between two pages is unlikely
local state, cursor, limit = ARGV[2], ARGV[3], tonumber(ARGV[4])
local rows, following = {}, ''

local function place_in(list, seen)
  for id in string.gmatch(seen, '%Z+') do
    local place = call('LPOS', list, id, 'RANK', -1)
    if place then return place end
  end
  return call('LLEN', list)
end

local function page_of_lists()
  local number, seen = string.match(cursor, '^(%d+) (.*)$')
  for i = tonumber(number) or 1, #LISTS do
    local place = place_in(LISTS[i], i == tonumber(number) and seen or '')
    local room = limit - #rows
    local ids = place > 0 and room > 0 and call('LRANGE', LISTS[i], math.max(0, place - room), place - 1) or {}
    for at = #ids, 1, -1 do
      rows[#rows + 1] = row('ready', ids[at], field(ids[at], 'json') or '', { meta = meta_of(ids[at]) })
    end
    if #ids > 0 then
      following = i .. ' ' .. table.concat(ids, '\0', 1, math.min(#ids, MAX_ANCHORS))
    end
  end
end

local function page_of_sets()
  local number, score, member = string.match(cursor, '^(%d) (%S+) (.*)$')
  local sets = { PROCESSING, DISPATCHED }
  for i = tonumber(number) or 1, #sets do
    local from = 0
    if i == tonumber(number) then
      from = call('ZCOUNT', sets[i], '-inf', '(' .. score)
      if call('ZSCORE', sets[i], member) == score then from = from + 1 end
    end
    local room = limit - #rows
    local found = room > 0 and call('ZRANGE', sets[i], from, from + room - 1, 'WITHSCORES') or {}
    for at = 1, #found, 2 do
      rows[#rows + 1] = describe_leased(found[at])
      following = i .. ' ' .. found[at + 1] .. ' ' .. found[at]
    end
  end
end

if state == 'ready' then
  page_of_lists()
elseif state == 'running' then
  page_of_sets()
end
return { #rows == limit and following or '', rows }
