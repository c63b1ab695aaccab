#!lua flags=allow-oom
-- uses operations
-- Removes the sent jobs from the outbox and reads the next ones, oldest first. The outbox has the jobs that completed jobs
-- handed over to other queues.
--
-- ARGV     [4] number of records at most  [5] read after this sequence  [6…] sequences of the sent jobs
-- returns  { the clock's reading, records: sequence, lengths of queue, id and change; queue, id, change; data }
-- errors   FORMAT, STALEOP, WRONGTYPE; nothing is written then.

local replayed = begin_op()
if type(replayed) == 'table' then return replayed end
measure('ZCARD', OUTBOX)
if not replayed and #ARGV > 5 then
  for i = 6, #ARGV do call('ZREMRANGEBYSCORE', OUTBOX, ARGV[i], ARGV[i]) end
  commit_op('')
end
return { reading(), call('ZRANGE', OUTBOX, '(' .. ARGV[5], '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[4]) }
