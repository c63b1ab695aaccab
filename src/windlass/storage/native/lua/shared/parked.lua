-- Taking parked jobs back. Part of the few calls that do.

-- Calls `use(id, m)` for parked jobs of a task, after it has taken them out of `parked` and `scheduled`. Examines at most
-- `limit` entries, and returns how many. A parked job may have been cancelled or rescheduled meanwhile: then its entry goes.
local function take_parked(task, limit, use)
  local members = limit > 0
      and call('ZRANGE', PARKED, '[' .. task .. '\0', '(' .. task .. '\1', 'BYLEX', 'LIMIT', 0, limit) or {}
  for _, member in ipairs(members) do
    local id = string.sub(member, #task + 2)
    local m = read_meta(call('HGET', META, id))
    local entry = m.seq > 0 and scheduled_member(m.seq, id)
    local run_at = tonumber(entry and call('ZSCORE', SCHEDULED, entry) or nil)
    if run_at and run_at % 1 == PARKED_FRACTION then
      call('ZREM', SCHEDULED, entry)
      call('HDEL', LAST_ERRORS, id)
      use(id, m)
    end
    call('ZREM', PARKED, member)
  end
  return #members
end
