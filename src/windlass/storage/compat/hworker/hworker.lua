-- hworker's own part; layout.py has its key map. The token of a run is the whole text of the job.

local JOBS, PROGRESS, BROKEN, FAILED = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local TIMEOUT_MS = 120000 -- a job that is longer in progress counts as abandoned; as in layout.py
local MAX_PAGES = 10 -- pages of running jobs that one sweep checks
local MAX_SORTED = 10000 -- more running or broken jobs than this are listed unsorted
local MAX_ID_BYTES = 512
-- A worker of the package that finds no job writes this field of PROGRESS, because its Lua takes an empty reply for a job.
local NO_JOB = 'false'
expect('list', JOBS, FAILED)
expect('hash', PROGRESS, BROKEN)
layout.sweep_every = TIMEOUT_MS / 10

-- Times -------------------------------------------------------------------------------------------------------------

local DAYS_BEFORE = { 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334 } -- each month of a common year

-- Days from 1970-01-01 to a date.
local function days_to(year, month, day)
  local past = year - 1
  local leap_days = math.floor(past / 4) - math.floor(past / 100) + math.floor(past / 400) - 477 -- 477 up to 1970
  local is_leap = year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)
  return 365 * (year - 1970) + leap_days + DAYS_BEFORE[month] + (is_leap and month > 2 and 1 or 0) + day - 1
end

local function write_time(us)
  local seconds = math.floor(us / 1000000)
  local days, second = math.floor(seconds / 86400), seconds % 86400
  local year = 1970 + math.floor(days / 365)
  while days_to(year, 1, 1) > days do year = year - 1 end
  local month = 12
  while days_to(year, month, 1) > days do month = month - 1 end
  return string.format(
    '"%04d-%02d-%02dT%02d:%02d:%02d.%06dZ"', year, month, days - days_to(year, month, 1) + 1,
    math.floor(second / 3600), math.floor(second / 60) % 60, second % 60, us % 1000000
  )
end

-- A time in ms since 1970, or nil if the text is no time. Peers write any number of digits behind the second.
local function read_time(text)
  local year, month, day, hour, minute, second, fraction, zone =
    string.match(text, '^"?(%d%d%d%d)%-(%d%d)%-(%d%d)[T ](%d%d):(%d%d):(%d%d)%.?(%d*) ?([^"]*)"?$')
  if not year or not DAYS_BEFORE[tonumber(month)] then return nil end
  local ahead = 0
  if zone ~= 'Z' then
    local sign, hours, minutes = string.match(zone, '^([+-])(%d%d):?(%d%d)$')
    if not sign then return nil end
    ahead = (hours * 60 + minutes) * (sign == '+' and 60 or -60)
  end
  local days = days_to(tonumber(year), tonumber(month), tonumber(day))
  return ((days * 24 + hour) * 3600 + minute * 60 + second + tonumber('0.' .. fraction .. '0') - ahead) * 1000
end

-- Texts -------------------------------------------------------------------------------------------------------------

-- The first element of the array in a text, if it is a string, and its end. Does not parse the rest.
local function read_id(text)
  local _, opening = string.find(text, '^%s*%[%s*"')
  local at = opening and string.find(text, '["\\]', opening + 1)
  while at and string.sub(text, at, at) == '\\' do
    at = string.find(text, '["\\]', at + 2)
  end
  if not at then return nil end
  local id = string.sub(text, opening + 1, at - 1)
  if not string.find(id, '\\', 1, true) then return id, at end
  local fine, unescaped = pcall(cjson.decode, '["' .. id .. '"]')
  return fine and unescaped[1] or nil, at
end

local function is_utf8(text)
  if not string.find(text, '[\128-\255]') then return true end
  for _, sequence in ipairs({
    '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]', '[\225-\236\238\239][\128-\191][\128-\191]',
    '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]',
    '[\241-\243][\128-\191][\128-\191][\128-\191]', '\244[\128-\143][\128-\191][\128-\191]',
  }) do
    text = string.gsub(text, sequence, '.')
  end
  return not string.find(text, '[\128-\255]')
end

-- The id that users see: the id in the array if it is a valid id, else a hash of the whole text.
local function public_id(text)
  local id = read_id(text)
  if id and id ~= '' and #id <= MAX_ID_BYTES and is_utf8(id) then return id end
  return 'sha1:' .. redis.sha1hex(text)
end

local json_reader -- an own instance: the settings of the shared one apply to all scripts

local function decode(text)
  if not json_reader then
    json_reader = cjson.new()
    json_reader.decode_invalid_numbers(false)
  end
  return pcall(json_reader.decode, text)
end

-- A text up to the bracket that closes its first one.
local function first_array(text)
  local at, depth = string.find(text, '%['), 0
  while at do
    local mark = string.sub(text, at, at)
    if mark == '"' then
      repeat
        at = string.find(text, '["\\]', at + 1)
        local escapes = at and string.sub(text, at, at) == '\\'
        if escapes then at = at + 1 end
      until not escapes
    else
      depth = depth + ((mark == '[' or mark == '{') and 1 or -1)
      if depth == 0 then return string.sub(text, 1, at) end
    end
    at = at and string.find(text, '["%[%]{}]', at + 1)
  end
  return nil
end

-- Whether a text is a JSON array of a string and one more element, and nothing else. An object or an empty array has no
-- element 1. The reader stops at a zero byte, so the text must not have one.
local function is_job(text)
  if string.find(text, '%z') or not string.find(text, '%]%s*$') then return false end
  local fine, found = decode(text)
  if fine then return type(found) == 'table' and type(found[1]) == 'string' and #found == 2 end
  if not string.find(tostring(found), 'too many nested', 1, true) then return false end
  local id, last = read_id(text)
  local array = id and string.find(text, '^%s*,', last + 1) and first_array(text)
  return array and not string.find(text, '%S', #array + 1)
end

-- The job that a text begins with, or nil. Like the package's parser, this ignores what stands behind the array.
local function job_in(text)
  if is_job(text) then return text end
  local array = first_array(text)
  return array and #array < #text and is_job(array) and array or nil
end

-- Taking and keeping ------------------------------------------------------------------------------------------------

function layout.add(_, text)
  call('LPUSH', JOBS, text)
  made_ready = made_ready + 1
  return 'a'
end

local function put_aside(text)
  call('HSET', BROKEN, text, write_time(now_us))
end

-- The begin time to write so that the monitors of peers leave the job alone until `ends`.
local function beginning(ends)
  return math.max(now_us, (ends - TIMEOUT_MS) * 1000)
end

-- Writes the begin time for peers, and a copy in the ledger: if they differ later, a peer has the job.
local function sign(text, began, copy)
  local value = write_time(began)
  call('HSET', PROGRESS, text, value)
  call('HSET', RUNS, copy, value)
end

-- The field of that copy, hashed once per run because texts may be long.
local function copy_of(run)
  run.copy = run.copy or note_field(run.token)
  return run.copy
end

local looks_left = MAX_ITEMS -- undecodable texts that this call may still put aside

local jobs_taken = {} -- in this call: text → the job in it

function layout.take(_, ends)
  while looks_left > 0 do
    local text = call('RPOP', JOBS)
    if not text then return nil end
    local job = job_in(text)
    if job then
      jobs_taken[text] = job
      sign(text, beginning(ends), note_field(text))
      return text
    end
    put_aside(text)
    looks_left = looks_left - 1
  end
  return nil
end

function layout.describe(run)
  local text = run.token
  return public_id(text), jobs_taken[text] or job_in(text) or text, ''
end

function layout.holds(run)
  local began = call('HGET', PROGRESS, run.token)
  return began and began == call('HGET', RUNS, copy_of(run))
end

function layout.extend(run, ends, never_less)
  local began = beginning(ends)
  if never_less and read_time(call('HGET', PROGRESS, run.token)) * 1000 >= began then return end
  sign(run.token, began, copy_of(run))
end

-- How it ends -------------------------------------------------------------------------------------------------------

function layout.complete(run)
  call('HDEL', PROGRESS, run.token)
end

local function to_front(text)
  call('RPUSH', JOBS, text)
  made_ready = made_ready + 1
end

local function to_back(text)
  call('LPUSH', JOBS, text)
  made_ready = made_ready + 1
end

function layout.release(run)
  call('HDEL', PROGRESS, run.token)
  to_front(run.token)
end

layout.stall = layout.release

function layout.retry(run)
  call('HDEL', PROGRESS, run.token)
  to_back(run.token)
end

-- Crashes are not counted here. At the front, a job that always crashes would block all others, so it goes to the back.
layout.crash = layout.retry

function layout.fail(run)
  call('HDEL', PROGRESS, run.token)
  local max_dead = tonumber(SETTING)
  call('LPUSH', FAILED, run.token)
  if max_dead > 0 then call('LTRIM', FAILED, 0, max_dead - 1) else call('DEL', FAILED) end
end

function layout.broken(run)
  call('HDEL', PROGRESS, run.token)
  put_aside(run.token)
end

layout.unknown = layout.broken

-- The monitor: jobs that are in progress for too long go to the front, the oldest first. A regular sweep checks a bounded
-- number of jobs and continues there the next time. With `asked`, it checks until it has found MAX_ITEMS.
function layout.sweep(asked)
  local cursor = not asked and call('HGET', STATE, 'monitor') or '0'
  local overdue, pages = {}, 0
  repeat
    local found = call('HSCAN', PROGRESS, cursor, 'COUNT', MAX_ITEMS)
    cursor, pages = found[1], pages + 1
    for i = 1, #found[2], 2 do
      local text, began = found[2][i], read_time(found[2][i + 1])
      if text == NO_JOB then -- stays: the next idle worker would only write it again
      elseif not began then
        call('HSET', PROGRESS, text, write_time(now_us))
      elseif now - began > TIMEOUT_MS then
        overdue[#overdue + 1] = { text = text, began = began }
      end
    end
  until cursor == '0' or #overdue >= MAX_ITEMS or (pages == MAX_PAGES and not asked)
  if cursor == '0' then
    call('HDEL', STATE, 'monitor')
  else
    call('HSET', STATE, 'monitor', cursor)
  end

  table.sort(overdue, function(a, b) return a.began > b.began end)
  local taken_back = 0
  for _, one in ipairs(overdue) do
    if call('HDEL', PROGRESS, one.text) == 1 then -- a scan may show a field twice
      to_front(one.text)
      taken_back = taken_back + 1
    end
  end
  return taken_back
end

-- Orders ------------------------------------------------------------------------------------------------------------

-- Calls `has_enough` for the fields of a hash, page by page, until it returns true. A field may come twice.
local function walk(key, has_enough)
  local cursor = '0'
  repeat
    local found = call('HSCAN', key, cursor, 'COUNT', MAX_ITEMS)
    cursor = found[1]
    for i = 1, #found[2], 2 do
      if has_enough(found[2][i], found[2][i + 1]) then return end
    end
  until cursor == '0'
end

local dead_records -- public id in ARGV → texts of dead and broken jobs; read once in a call

local function texts_of(id)
  if not dead_records then
    dead_records = {}
    for at = 4, #ARGV do dead_records[ARGV[at]] = {} end
    local function collect(text)
      local texts = dead_records[public_id(text)]
      if texts then texts[#texts + 1] = text end
    end
    for at = 0, call('LLEN', FAILED) - 1, MAX_ITEMS do
      for _, text in ipairs(call('LRANGE', FAILED, at, at + MAX_ITEMS - 1)) do collect(text) end
    end
    walk(BROKEN, collect)
  end
  return dead_records[id]
end

function layout.revive(id)
  local found = false
  for _, text in ipairs(texts_of(id)) do
    if call('LREM', FAILED, 0, text) + call('HDEL', BROKEN, text) > 0 then
      to_back(text)
      found = true
    end
  end
  return found
end

local function purge_list(key)
  return #(call('RPOP', key, MAX_ITEMS) or {}), call('LLEN', key)
end

local function purge_hash(key)
  local texts = call('HRANDFIELD', key, MAX_ITEMS)
  if #texts > 0 then call('HDEL', key, unpack(texts)) end
  return #texts, call('HLEN', key)
end

local function purge_running()
  call('HDEL', PROGRESS, NO_JOB)
  return purge_hash(PROGRESS)
end

local PURGES = {
  ready = function() return purge_list(JOBS) end,
  running = purge_running,
  dead = function() return purge_list(FAILED) end,
  broken = function() return purge_hash(BROKEN) end,
}

function layout.purge(state)
  local gone, left = 0, 0
  for name, purge in pairs(PURGES) do
    if state == 'all' or state == name then
      local went, stayed = purge()
      gone, left = gone + went, left + stayed
    end
  end
  return gone, left
end

-- Questions ---------------------------------------------------------------------------------------------------------

function layout.counts()
  local running = call('HLEN', PROGRESS) - call('HEXISTS', PROGRESS, NO_JOB)
  return { call('LLEN', JOBS), 0, 0, running, call('LLEN', FAILED), call('HLEN', BROKEN) }
end

-- A page of texts of a hash with their times. Sorting by time means reading the whole hash; a hash with more than MAX_SORTED
-- fields is listed in the order of the server.
local function by_time(key, latest_first, offset, limit)
  local dated, passed_over = {}, 0
  local function add_entry(text, time) dated[#dated + 1] = { text = text, time = read_time(time) or 0 } end
  local function is_mark(text) return key == PROGRESS and text == NO_JOB end
  if call('HLEN', key) > MAX_SORTED then
    walk(key, function(text, time)
      if is_mark(text) then return false end
      if passed_over == offset then add_entry(text, time) else passed_over = passed_over + 1 end
      return #dated == limit
    end)
    return dated
  end
  walk(key, function(text, time)
    if not is_mark(text) then add_entry(text, time) end
  end)
  table.sort(dated, function(a, b)
    if a.time ~= b.time then return (a.time > b.time) == latest_first end
    return a.text < b.text
  end)
  return { unpack(dated, offset + 1, math.min(offset + limit, #dated)) }
end

local function describe_leased(text)
  local fence = call('HGET', RUNS, fence_field(text))
  local run = fence and run_of(fence)
  return row('running', public_id(text), text, run and { holder = run.holder, fence = run.fence })
end

-- Ready jobs in the order in which they will be taken, running ones by begin time, dead and broken ones latest first.
function layout.list(state, offset, limit)
  local rows = {}
  if state == 'ready' then
    local texts = call('LRANGE', JOBS, -offset - limit, -offset - 1)
    for i = #texts, 1, -1 do rows[#rows + 1] = row('ready', public_id(texts[i]), texts[i]) end
  elseif state == 'running' then
    for i, one in ipairs(by_time(PROGRESS, false, offset, limit)) do rows[i] = describe_leased(one.text) end
  elseif state == 'dead' then
    for i, text in ipairs(call('LRANGE', FAILED, offset, offset + limit - 1)) do
      rows[i] = row('dead', public_id(text), text)
    end
  elseif state == 'broken' then
    for i, one in ipairs(by_time(BROKEN, true, offset, limit)) do
      rows[i] = row('broken', public_id(one.text), one.text, { died_at = one.time > 0 and whole(one.time) or '' })
    end
  end
  return rows
end
