#!lua flags=no-writes
-- uses meta job_rows
-- Everything about one job: the running or waiting job with this id, else the dead or broken one.
--
-- ARGV     [1] id
-- returns  a row (see shared/job_rows.lua), or an empty array
-- errors   FORMAT, WRONGTYPE

read_state()
wall_clock()
due = wall - state.skew
local id = ARGV[1]
local lease = checked_call('HGET', LEASES, id)
if lease then return leased_row(id, lease) end
local score = checked_call('ZSCORE', READY, id)
if score then return ready_row(id, score) end
local m = read_meta(checked_call('HGET', META, id))
local run_at = m.seq > 0 and checked_call('ZSCORE', SCHEDULED, scheduled_member(m.seq, id))
if run_at then return scheduled_row(id, run_at) end
return dead_row(checked_call('ZSCORE', BROKEN, id) and 'broken' or 'dead', id) or {}
