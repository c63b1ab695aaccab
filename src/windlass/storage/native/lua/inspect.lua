#!lua flags=no-writes
-- uses operations meta leases changes publish_events wake place_job finish_job problems marks
-- One batch of an audit without repair: compares a bounded part of one key with the other keys and reports the problems that
-- shared/problems.lua lists. The flag `no-writes` makes the server refuse any write.
--
-- ARGV     [1] the part's name, as in shared/problems.lua  [2] cursor: "0" to begin
-- returns  { next cursor or "0", jobs checked, problems, 0, kind and id of some problems }
-- errors   FORMAT, WRONGTYPE

read_state()
measure_all()
return audit_batch(ARGV[1], ARGV[2])
