#!lua flags=allow-oom
-- Some of the jobs that one holder has, in the order in which they were leased.
--
-- ARGV     [2] holder  [3] the fence after which to look, or ""  [4] how many at most
-- returns  { the last fence if there may be more, or "", rows }

local MOST_BYTES = 8 * 1024 * 1024 -- of payloads in one reply

SETTING = ARGV[1]
local rows, bytes, last = {}, 0, ''
local from = ARGV[3] == '' and '[' .. ARGV[2] .. '\0' or '(' .. ARGV[2] .. '\0' .. ARGV[3]
local members = call('ZRANGE', HELD, from, '(' .. ARGV[2] .. '\1', 'BYLEX', 'LIMIT', 0, ARGV[4])
local runs = read_runs(members)
for i = #runs, 1, -1 do
  if layout.holds(runs[i]) then
    local id, data, meta = describe(runs[i])
    local more = { meta = meta, holder = runs[i].holder, fence = runs[i].fence, cancelled = runs[i].cancelled }
    rows[#rows + 1] = row('leased', id, data, more)
    bytes = bytes + #data
  end
  if bytes > MOST_BYTES then return { runs[i].fence, rows } end
end
if #members == tonumber(ARGV[4]) then last = string.match(members[#members], '%d+$') end
return { last, rows }
