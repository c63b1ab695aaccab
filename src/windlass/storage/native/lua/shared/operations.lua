-- Operation ids. A caller sends its calls one after the other, over one connection at a time. The state keeps the last
-- operation of each caller with its answer. The same number again is a repeated call, whose first reply was lost: it
-- gets the first answer and changes nothing. A lower number comes from a connection that its client gave up, and is refused.
--
-- Every call that writes is a step, and step numbers rise by one. The epoch is set when the queue's state is created, so
-- (epoch, step) orders everything that ever happened to a queue. A step lower than one reported before means that the
-- server has lost writes: a backup was restored, or a replica took over that was behind.


local function caller_is_expired(field, heard)
  return now - tonumber(heard) > (string.sub(field, 1, 12) == 'caller:from:' and SOURCE_TTL_MS or CALLER_TTL_MS)
end

local function write_record(step, answer)
  return ARGV[2] .. ' ' .. string.format('%.0f', now) .. ' ' .. step .. ' ' .. answer
end

-- Reads the state and advances the clock. Returns the recorded answer if this operation was done before, an error reply
-- if a later one was, else nil.
local function begin_op()
  caller_field = 'caller:' .. ARGV[1]
  local record = read_state(caller_field)
  advance_clock(ARGV[3])
  state.clear_expiry = not record or string.sub(record, 1, 1) == '0' -- "0" marks a caller that unregistered
  if record then
    local number = tonumber(string.match(record, '^%d+'))
    if number == tonumber(ARGV[2]) then
      local step, answer = string.match(record, '^%d+ %d+ (%d+) (.*)$')
      state.step = tonumber(step) -- reading() reports it
      -- Write it again: WAIT and WAITAOF wait for the last write of their own connection, and the first try may have
      -- used another connection.
      call('HSET', STATE, caller_field, write_record(step, answer))
      return answer
    elseif number > tonumber(ARGV[2]) then
      return redis.error_reply('STALEOP a later operation of this caller was applied before')
    end
  end
  return nil
end

-- Creates the state of a new queue. The core has the format as well; earlier versions look for this field.
local function init_state()
  state.epoch = wall_us
  call('HSET', STATE, 'format', VERSION)
end

-- Writes the state and the answer. A script calls it once, after its other writes.
local function commit_op(answer)
  state.step, state.committed = state.step + 1, true
  if state.epoch == 0 then init_state() end
  call('HSET', STATE, 'core', write_core(now), 'evidence', state.evidence, caller_field,
    write_record(string.format('%.0f', state.step), answer))
  if state.jumped or state.silent then
    call('HSET', STATE, 'drift', write_drift())
  end
  if state.clear_expiry then
    call('PERSIST', STATE) -- the last client that unregistered may have set an expiry
    -- The first call of a new caller drops callers that ended without unregistering, from a bounded sample.
    local some = call('HRANDFIELD', STATE, 20, 'WITHVALUES')
    for i = 1, #some, 2 do
      local heard = some[i] ~= caller_field and string.sub(some[i], 1, 7) == 'caller:' and string.match(some[i + 1], '^%d+ (%d+)')
      if heard and caller_is_expired(some[i], heard) then call('HDEL', STATE, some[i]) end
    end
  end
end

local function next_seq()
  state.seq = state.seq + 1
  return state.seq
end
