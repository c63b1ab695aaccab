-- Rows describe one job each, for the scripts that only read:
-- { state, id, data, META record, ready score, run time, LEASES record, progress, message of the last failure }
-- A dead or broken job is { state, id, dead record }.

local function row_of(what, id, score, run_at, lease)
  return { what, id, checked_call('HGET', DATA, id), checked_call('HGET', META, id), score, run_at, lease, checked_call('HGET', PROGRESS, id), checked_call('HGET', LAST_ERRORS, id) }
end

local function leased_row(id, lease)
  return row_of('running', id, false, false, lease)
end

local function ready_row(id, score)
  return row_of('ready', id, score, false, false)
end

local function scheduled_row(id, run_at)
  return row_of(tonumber(run_at) > due and 'scheduled' or 'ready', id, false, run_at, false)
end

local function dead_row(what, id)
  local record = checked_call('HGET', DEAD_RECORDS, id)
  return record and { what, id, record }
end
