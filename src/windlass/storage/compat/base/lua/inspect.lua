#!lua flags=no-writes
-- One batch of an audit without repair: compares a bounded part of the queue with the other keys and reports the problems. The
-- flag `no-writes` makes the server refuse any write.
--
-- ARGV     [2] the part: of problems.lua here or of the layout's problems.lua  [3] cursor, "0" to begin
-- returns  { next cursor or "0", jobs checked, problems, 0, kind and id of some problems }
-- errors   WRONGTYPE

SETTING = ARGV[1]
return audit_batch(ARGV[2], ARGV[3])
