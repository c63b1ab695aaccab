#!lua flags=no-writes
-- Reads the kept result of a finished job.
--
-- KEYS     after the queue's own: the result's key
-- returns  a letter (d done, f failed, c crashed) and the result or message; nil without a result
-- errors   WRONGTYPE

return checked_call('GET', KEYS[KEYS_OF_QUEUE + 1])
