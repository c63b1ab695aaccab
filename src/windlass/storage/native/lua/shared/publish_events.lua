-- Publishing the events of watched jobs. Most queues have none, and then this costs nothing.

local function publish_event(id, event)
  if size[WATCHED] == 0 or not call('ZSCORE', WATCHED, id) then return end
  call('PUBLISH', EVENT_CHANNEL .. string.match(STATE, '{(.-)}') .. ':' .. id, event)
end
