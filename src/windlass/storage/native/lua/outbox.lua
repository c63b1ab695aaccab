#!lua flags=allow-oom
-- uses operations
-- Removes the sent jobs from the outbox and reads the next ones, oldest first. A completed job can hand
-- over jobs; those for other queues wait in the outbox.
--
-- ARGV     [4] number of records at most  [5] read after this sequence  [6…] sequences of the sent jobs
-- returns  { the clock's reading, records: sequence, lengths of queue, id and change; queue, id, change; data }
-- errors   FORMAT, STALEOP, WRONGTYPE; nothing is written then.

local repeated = begin_op()
if type(repeated) == 'table' then return repeated end
measure('ZCARD', OUTBOX)
if not repeated and #ARGV > 5 then
  for i = 6, #ARGV do call('ZREMRANGEBYSCORE', OUTBOX, ARGV[i], ARGV[i]) end
  commit_op('')
end
return { reading(), call('ZRANGE', OUTBOX, '(' .. ARGV[5], '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[4]) }
