#!lua flags=no-writes
-- What a finished job left behind.
--
-- KEYS     after the queue's own: the result's key
-- returns  a letter (d done, f failed, c crashed) and the result or the message; or nothing
-- errors   WRONGTYPE

return read('GET', KEYS[KEYS_OF_QUEUE + 1])
