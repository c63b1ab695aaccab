#!lua flags=no-writes
-- uses schedules
-- Reads schedules and the queue's time: by their names, all of them, or the due ones. A schedule that is declared in code (the
-- beginning of its record says so) counts as due only for a caller that declares it.
--
-- ARGV     [1] the caller's clock evidence  [2] "named", "all" or "due"
--          named: [3…] names
--          all:   [3] cursor, "0" to begin
--          due:   [3] how many due ones to skip  [4…] names that the caller declares
-- returns  { now in ms, rows: { name, record, next tick or "", fired, dropped, missed, last tick }, cursor of the next page or "",
--            the first tick after now or "" }
-- errors   FORMAT, WRONGTYPE

local MAX_ROWS = 100
local DECLARED = '{"version":1,"declared":true,'

read_state()
measure('HLEN', SCHEDULES)
measure('ZCARD', TICKS)
advance_clock(ARGV[1])

local rows, bytes = {}, 0

local function add(name, s, next_tick)
  rows[#rows + 1] = { name, s.record, next_tick or '', s.fired, s.dropped, s.missed, s.last }
  bytes = bytes + #s.record
end

local function answer(cursor, ahead)
  return { due, rows, cursor, ahead }
end

if ARGV[2] == 'named' then
  for i = 3, #ARGV do
    local text = call('HGET', SCHEDULES, ARGV[i])
    if text then add(ARGV[i], split_schedule(text), call('ZSCORE', TICKS, ARGV[i])) end
  end
  return answer('', '')
end

if ARGV[2] == 'all' then
  local page = call('HSCAN', SCHEDULES, ARGV[3], 'COUNT', MAX_ROWS)
  for i = 1, #page[2], 2 do
    add(page[2][i], split_schedule(page[2][i + 1]), call('ZSCORE', TICKS, page[2][i]))
  end
  return answer(page[1] == '0' and '' or page[1], '')
end

local ours = {}
for i = 4, #ARGV do ours[ARGV[i]] = true end

-- The schedule with this name, if it exists and the caller may fire it.
local function mine(name)
  local text = call('HGET', SCHEDULES, name)
  if not text then return nil end
  local s = split_schedule(text)
  if string.sub(s.record, 1, #DECLARED) == DECLARED and not ours[name] then return nil end
  return s
end

local from = tonumber(ARGV[3])
local found = call('ZRANGE', TICKS, '-inf', due, 'BYSCORE', 'LIMIT', from, MAX_ITEMS, 'WITHSCORES')
local cursor = #found == 2 * MAX_ITEMS and from + MAX_ITEMS or ''
for i = 1, #found, 2 do
  local s = mine(found[i])
  if s then add(found[i], s, found[i + 1]) end
  if #rows == MAX_ROWS or bytes > MAX_REPLY_BYTES / 2 then
    cursor = from + (i + 1) / 2
    break
  end
end

-- If the first MAX_ROWS ticks all belong to other callers, the last of them is the answer, a little too early.
local ahead = ''
found = call('ZRANGE', TICKS, '(' .. string.format('%.0f', due), '+inf', 'BYSCORE', 'LIMIT', 0, MAX_ROWS, 'WITHSCORES')
for i = 1, #found, 2 do
  if mine(found[i]) then
    ahead = found[i + 1]
    break
  end
  if i + 1 == 2 * MAX_ROWS then ahead = found[i + 1] end
end
return answer(tostring(cursor), ahead)
