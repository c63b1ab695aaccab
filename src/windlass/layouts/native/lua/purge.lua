#!lua flags=allow-oom
-- Deletes the jobs of one state, a bounded number a call, or the whole queue at once, what is leased included.
--
-- ARGV     [4] ready, scheduled, blocked, dead, or all
-- returns  { now, jobs deleted, jobs of that state left }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = open()
if replayed then
  if type(replayed) == 'table' then return replayed end
  local deleted, left = string.match(replayed, '^(%d+) (%d+)$')
  return { now, tonumber(deleted), tonumber(left) }
end
measure(READY, SCHEDULED, LEASES, HELD, HOLDERS, DATA, META, BLOCKED, PROGRESS, NOTES, DEAD, GRAVES, INBOX, IDLE)

local what = ARGV[4]
if what == 'all' then
  local deleted = size[DATA] + size[BLOCKED] + size[INBOX] + size[DEAD]
  call('UNLINK', STATE, READY, SCHEDULED, LEASES, HELD, HOLDERS, DATA, META, BLOCKED, PROGRESS, NOTES, DEAD, GRAVES, INBOX, IDLE)
  -- Only the answer to this call is kept, for a repeat; without a clock the queue counts as new.
  call('HSET', STATE, lane_field, ARGV[2] .. ' ' .. string.format('%.0f', now) .. ' ' .. deleted .. ' 0')
  return { now, deleted, 0 }
end

local deleted, key = 0, nil
if what == 'ready' or what == 'scheduled' then
  key = what == 'ready' and READY or SCHEDULED
  local members = call('ZRANGE', key, 0, MOST - 1)
  if #members > 0 then
    local ids = {}
    for i, member in ipairs(members) do ids[i] = what == 'ready' and member or string.sub(member, 9) end
    call('ZREM', key, unpack(members))
    call('HDEL', DATA, unpack(ids))
    call('HDEL', META, unpack(ids))
    call('HDEL', NOTES, unpack(ids))
    deleted = #ids
  end
elseif what == 'dead' then
  key = DEAD
  local ids = call('ZRANGE', DEAD, 0, MOST - 1)
  if #ids > 0 then
    call('ZREM', DEAD, unpack(ids))
    call('HDEL', GRAVES, unpack(ids))
    deleted = #ids
  end
else
  key = BLOCKED
  deleted = size[BLOCKED]
  call('UNLINK', BLOCKED)
end
local left = call(SIZE_OF[key], key)
close(string.format('%d %d', deleted, left))
return { now, deleted, left }
