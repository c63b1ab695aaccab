#!lua flags=allow-oom
-- All jobs that one holder has.
--
-- ARGV     [2] holder
-- returns  rows, in the order in which they were leased

SETTING = ARGV[1]
local rows = {}
local runs = runs_of(ARGV[2])
for i = #runs, 1, -1 do
  if layout.holds(runs[i]) then
    local id, data, meta = layout.describe(runs[i])
    local more = { meta = meta, holder = runs[i].holder, fence = runs[i].fence, cancelled = runs[i].cancelled }
    rows[#rows + 1] = row('leased', id, data, more)
  end
end
return rows
