#!lua flags=no-writes
-- What is left of a job, and what tells whether that is all there is to know.
--
-- ARGV     [1] id
-- KEYS     after the queue's own: the result's key
-- returns  { the result: a letter (d done, f failed, c crashed) and the result or message; nil without one,
--            the mark's number (Mark in values/ending.py), or -1,
--            1 if a job with this id is on the queue, 1 if one is dead or broken,
--            the queue's epoch and step, the step of its last purge of jobs or 0 }
-- errors   FORMAT, WRONGTYPE

read_state()
wall_clock()
local mark = tonumber(checked_call('ZSCORE', ENDED, ARGV[1]) or nil)
if mark and mark < wall * MARK_CODES then mark = nil end
return { checked_call('GET', KEYS[KEYS_OF_QUEUE + 1]), mark and mark % MARK_CODES or -1, checked_call('HEXISTS', DATA, ARGV[1]),
  checked_call('HEXISTS', DEAD_RECORDS, ARGV[1]), state.epoch, state.step,
  tonumber(call('HMGET', STATE, 'purged')[1] or 0) }
