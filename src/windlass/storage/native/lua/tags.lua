#!lua flags=no-writes
-- uses meta
-- Counts the tags of waiting and running jobs, in steps. A job that moves between two steps may count twice or not at all.
--
-- ARGV     [1] cursor: "0" to begin, else as the step before returned it
-- returns  { cursor of the next step or "0", tag, how many jobs have it, next tag, … }
-- errors   FORMAT, WRONGTYPE

read_state()
local found = checked_call('HSCAN', META, ARGV[1], 'COUNT', MAX_ITEMS)
local numbers, reply = {}, { found[1] }
for i = 2, #found[2], 2 do
  for _, tag in ipairs(tags_of(read_meta(found[2][i]).extras)) do numbers[tag] = (numbers[tag] or 0) + 1 end
end
for tag, number in pairs(numbers) do
  reply[#reply + 1] = tag
  reply[#reply + 1] = number
end
return reply
