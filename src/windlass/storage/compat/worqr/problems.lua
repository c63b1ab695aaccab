-- Inconsistencies of a Worqr queue beside its ledger. A waiting task is one entry of one list, so it needs no check.
--
--   listed      listed process id without a process → dropped
--   processes   process that is not listed, as a peer's failWorker may leave it → listed
--   runs        run of Windlass that is not in TOKENS, so no cancel would find it → added

function compare.listed(cursor)
  local found = call('SSCAN', PROCESSES, cursor, 'COUNT', 200)
  for _, token in ipairs(found[2]) do
    if call('EXISTS', process(token)) == 0 and report('no process', token) then call('SREM', PROCESSES, token) end
  end
  return found[1]
end

function compare.processes(cursor)
  local pattern = string.gsub(process(NAME), '[%[%]%?%*\\]', '\\%0') .. '_*'
  local found = call('SCAN', cursor, 'MATCH', pattern, 'COUNT', 1000)
  for _, key in ipairs(found[2]) do
    local token = string.sub(key, #process('') + 1)
    local ours = string.match(token, '^(.*)_[^_]*$') == NAME and holds_a('list', key)
    if ours and call('SISMEMBER', PROCESSES, token) == 0 and report('not listed', token) then call('SADD', PROCESSES, token) end
  end
  return found[1]
end

function layout.compare_run(run)
  if layout.holds(run) and not call('ZSCORE', TOKENS, run.token) and report('not in the index', run.token) then
    call('ZADD', TOKENS, 0, run.token)
    keep_tokens(now)
  end
end
