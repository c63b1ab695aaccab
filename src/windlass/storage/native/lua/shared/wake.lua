-- Waking idle workers.

local made_ready = 0 -- jobs that became ready in this call
local MAX_SOON_WAKES = 8 -- wake-ups for such run times: where more waiters exist, one of them polls soon anyway
local soon_count = 0 -- jobs scheduled in this call that are due before the next poll of a waiter

-- Wakes `count` idle waiters, longest idle first. A waiter without a subscription does not count. Also wakes one waiter
-- for each run time before the next poll, because a waiter sleeps until the first run time it knew. A lost wake-up only
-- delays a job until the next poll.
local function wake(count)
  if size[IDLE] == 0 then return end
  count = count + math.min(soon_count, MAX_SOON_WAKES)
  while count > 0 do
    local waiter = call('ZPOPMIN', IDLE)[1]
    if not waiter then return end
    if call('PUBLISH', WAKE_CHANNEL .. waiter, '') > 0 then
      count = count - 1
    end
  end
end
