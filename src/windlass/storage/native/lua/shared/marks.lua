-- Marks. A job that completes may leave nothing at all. So a job that ends in another way leaves a mark in `ended`: else its
-- handle would take it for completed. A later result of a completed job with the same id takes the mark away. A mark goes
-- also when its id is enqueued again, and after MARK_TTL_MS. Needs the size of ENDED.

-- Leaves marks, and drops those that have expired: at most two for each new one. If there are too many, drops old ones that
-- have not expired; handles then know by the step in `purged` that the absence of a mark tells them nothing.
local function leave_marks(ids, code)
  if #ids == 0 then return end
  local score, adds = string.format('%.0f', (wall + MARK_TTL_MS) * MARK_CODES + code), {}
  for i, id in ipairs(ids) do adds[2 * i - 1], adds[2 * i] = score, id end
  call('ZADD', ENDED, unpack(adds))
  call('PEXPIRE', ENDED, MARK_TTL_MS)
  size[ENDED] = 1
  local expired_marks = call('ZRANGE', ENDED, '-inf', string.format('%.0f', wall * MARK_CODES), 'BYSCORE', 'LIMIT', 0, 2 * #ids)
  if #expired_marks > 0 then call('ZREM', ENDED, unpack(expired_marks)) end
  if call('ZCARD', ENDED) > MAX_MARKS then
    call('ZPOPMIN', ENDED, MAX_ITEMS)
    call('HSET', STATE, 'purged', string.format('%.0f', state.step + 1))
  end
end

local function leave_mark(id, code)
  leave_marks({ id }, code)
end

local function drop_mark(id)
  if size[ENDED] > 0 then call('ZREM', ENDED, id) end
end
