#!lua flags=allow-oom
-- uses operations
-- The jobs that finished jobs of this queue handed over to other queues, and are still to be sent there, oldest first.
-- Those that were sent are taken off.
--
-- ARGV     [4] how many at most  [5] the sequence after which to look  [6…] sequences of those that were sent
-- returns  { the clock's reading, records: sequence, lengths of queue, id and change; then those, then the data }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = open()
if type(replayed) == 'table' then return replayed end
measure('ZCARD', OUTBOX)
if not replayed and #ARGV > 5 then
  for i = 6, #ARGV do call('ZREMRANGEBYSCORE', OUTBOX, ARGV[i], ARGV[i]) end
  close('')
end
return { reading(), call('ZRANGE', OUTBOX, '(' .. ARGV[5], '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[4]) }
