-- Operation ids. A caller is one connection's worth of calls, one after the other; the state remembers
-- the last operation of each caller with its answer. The same number again is a repeat whose first
-- reply was lost: it gets the first answer and changes nothing. A lower one comes from a connection that
-- was given up long ago and is refused.
--
-- Every step that writes has a number, which rises by one. The epoch is made with the queue's state, so epoch and number
-- together put all that ever happened to a queue in order; and a number lower than one that was told before means that
-- the server has forgotten something: a backup was restored, or a replica took over that was behind.

local CALLER_FORGOTTEN = 600000 -- ms after which the last answer to a silent caller may be dropped
local OUTBOX_FORGOTTEN = 86400000 -- the same for what came from another queue's outbox: its workers may be away for long

local function is_forgotten(field, heard)
  return now - tonumber(heard) > (string.sub(field, 1, 12) == 'caller:from:' and OUTBOX_FORGOTTEN or CALLER_FORGOTTEN)
end

local function write_record(step, answer)
  return ARGV[2] .. ' ' .. string.format('%.0f', now) .. ' ' .. step .. ' ' .. answer
end

-- Reads the state, advances the clock. Returns the recorded answer when this operation was done before.
local function open()
  caller_field = 'caller:' .. ARGV[1]
  local record = read_state(caller_field)
  advance_clock(ARGV[3])
  state.newcomer = not record or string.sub(record, 1, 1) == '0' -- it is here, or here again after a goodbye
  if record then
    local number = tonumber(string.match(record, '^%d+'))
    if number == tonumber(ARGV[2]) then
      local step, answer = string.match(record, '^%d+ %d+ (%d+) (.*)$')
      state.step = tonumber(step) -- for the reading
      -- Written again: who waits for replicas or for the disk waits for the last write of its own connection,
      -- and the first answer may have gone to another.
      call('HSET', STATE, caller_field, write_record(step, answer))
      return answer
    elseif number > tonumber(ARGV[2]) then
      return redis.error_reply('STALEOP a later operation of this caller was applied before')
    end
  end
  return nil
end

-- Makes the state of a new queue. The format stands in the core as well; earlier versions look for it here.
local function begin_state()
  state.epoch = wall_us
  call('HSET', STATE, 'format', VERSION)
end

-- Writes the state and the answer. Called once, after the other writes.
local function close(answer)
  state.step, state.closed = state.step + 1, true
  if state.epoch == 0 then begin_state() end
  call('HSET', STATE, 'core', write_core(now), 'witness', state.witness, caller_field,
    write_record(string.format('%.0f', state.step), answer))
  if state.jumped or state.silent then
    call('HSET', STATE, 'drift', write_drift())
  end
  if state.newcomer then
    call('PERSIST', STATE) -- the last goodbye may have set its end
    -- A caller's first call on a queue pays for callers that ended without a goodbye: a bounded sample of them.
    local some = call('HRANDFIELD', STATE, 20, 'WITHVALUES')
    for i = 1, #some, 2 do
      local heard = some[i] ~= caller_field and string.sub(some[i], 1, 7) == 'caller:' and string.match(some[i + 1], '^%d+ (%d+)')
      if heard and is_forgotten(some[i], heard) then call('HDEL', STATE, some[i]) end
    end
  end
end

local function next_seq()
  state.seq = state.seq + 1
  return state.seq
end
