-- Telling those who watch a job what happens to it. Nobody watches most jobs, and then this costs nothing.

local function tell(id, event)
  if size[WATCHED] == 0 or not call('ZSCORE', WATCHED, id) then return end
  call('PUBLISH', 'windlass:event:' .. string.match(STATE, '{(.-)}') .. ':' .. id, event)
end
