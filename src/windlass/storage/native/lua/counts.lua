#!lua flags=no-writes
-- Counts the jobs of each state, all at one moment. A due job counts as ready, promoted or not.
--
-- returns  { ready, scheduled, blocked, running, dead, inbox, holders, "1" if paused, broken, parked (part of scheduled),
--            outbox, schedules, dead jobs dropped since the last purge of the dead }
-- errors   FORMAT, WRONGTYPE

read_state()
measure('ZCARD', READY, SCHEDULED, DEAD, HOLDERS, BROKEN, PARKED, OUTBOX)
measure('HLEN', LEASES, BLOCKED, SCHEDULES)
measure('LLEN', INBOX)
wall_clock()
local overdue = call('ZCOUNT', SCHEDULED, '-inf', wall - state.skew)
return {
  size[READY] + overdue, size[SCHEDULED] - overdue, size[BLOCKED], size[LEASES], size[DEAD], size[INBOX], size[HOLDERS],
  state.paused and '1' or '0', size[BROKEN], size[PARKED], size[OUTBOX], size[SCHEDULES],
  tonumber(call('HGET', STATE, 'dropped') or 0),
}
