#!lua flags=no-writes
-- Which commands this user may run. The server is asked what it would say, so that nothing forbidden is tried: each try would
-- be an entry in its ACL LOG.
--
-- ARGV     commands, their words separated by spaces
-- returns  for each "1", "0", or "" where the server has no such command

local answers = {}
for i, line in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(line, '%S+') do words[#words + 1] = word end
  local known, may = pcall(redis.acl_check_cmd, unpack(words))
  answers[i] = known and (may and '1' or '0') or ''
end
return answers
