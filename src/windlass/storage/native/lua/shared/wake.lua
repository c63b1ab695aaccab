-- Telling those who wait that there is work.

local came = 0 -- jobs that became ready in this call, for `wake`
local SOON = 15500 -- ms, a little more than the time after which a waiter looks by itself at the latest
local MOST_SOON = 8 -- waiters that are told of such run times: where more wait, one of them looks within a moment
local soon = 0 -- run times set in this call that come before a waiter looks by itself

-- Wakes idle waiters, longest idle first; one that is gone does not count. A lost wake-up only delays. One is woken
-- for each run time that comes before the next poll, too: a waiter sleeps until the first one that it knew of.
local function wake(count)
  if size[IDLE] == 0 then return end
  count = count + math.min(soon, MOST_SOON)
  while count > 0 do
    local waiter = call('ZPOPMIN', IDLE)[1]
    if not waiter then return end
    if call('PUBLISH', 'windlass:wake:' .. waiter, '') > 0 then
      count = count - 1
    end
  end
end
