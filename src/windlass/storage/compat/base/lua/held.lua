#!lua flags=allow-oom
-- One page of the jobs of a holder, in the order in which they were leased.
--
-- ARGV     [2] holder  [3] read after this fence, or ""  [4] rows at most
-- layout   holds(run) · describe(run)
-- returns  { the last fence if there may be more, or "", rows }
-- errors   WRONGTYPE


SETTING = ARGV[1]
local rows, bytes, last = {}, 0, ''
local from = ARGV[3] == '' and '[' .. ARGV[2] .. '\0' or '(' .. ARGV[2] .. '\0' .. ARGV[3]
local members = call('ZRANGE', HELD, from, '(' .. ARGV[2] .. '\1', 'BYLEX', 'LIMIT', 0, ARGV[4])
local runs = read_runs(members)
for i = #runs, 1, -1 do
  if layout.holds(runs[i]) then
    local id, data, meta = describe(runs[i])
    local more = { meta = meta, holder = runs[i].holder, fence = runs[i].fence, cancelled = runs[i].cancelled }
    rows[#rows + 1] = row('running', id, data, more)
    bytes = bytes + #data
  end
  if bytes > MAX_REPLY_BYTES then return { runs[i].fence, rows } end
end
if #members == tonumber(ARGV[4]) then last = string.match(members[#members], '%d+$') end
return { last, rows }
