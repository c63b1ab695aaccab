#!lua flags=no-writes
-- Which commands this user may run. Asks the server instead of trying them, because each refused try would be an entry in the
-- ACL LOG.
--
-- ARGV     commands, their words separated by spaces
-- returns  for each command "1" allowed, "0" forbidden, or "" unknown to the server

local answers = {}
for i, line in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(line, '%S+') do words[#words + 1] = word end
  local known, may = pcall(redis.acl_check_cmd, unpack(words))
  answers[i] = known and (may and '1' or '0') or ''
end
return answers
