-- What does not fit in a queue of Redis Work Queue, beside its ledger.
--
--   items        an item that is in no list and that nobody works on, because somebody died between two commands → to the back
--   queue        an id with no item → dropped; one that is worked on → to `processing`, as in a lease; one that comes again
--                → dropped here. It is looked for in so many entries as a call can read: in longer lists, whoever leases the second
--                one finds that out
--   processing   an id with no item → dropped
--
-- What is in two lists otherwise may be in the hands of a peer just now: a sweep sees to it when it stays so.

local SOME, AHEAD = 300, 2700 -- entries that are looked at in one step, and in which the same id is looked for

-- The lists are read only for items that nobody works on.
local function idle_items(cursor)
  local pattern = string.gsub(item(''), '[%[%]%?%*\\]', '\\%0') .. '*'
  local found, ids = call('SCAN', cursor, 'MATCH', pattern, 'COUNT', MOST, 'TYPE', 'string'), {}
  for _, key in ipairs(found[2]) do
    local id = string.sub(key, #item('') + 1)
    if not is_leased(id) then ids[#ids + 1] = id end
  end
  return found[1], ids
end

function compare.items(cursor)
  local following, lost = search({ QUEUE, PROCESSING, CLEANING }, cursor, idle_items)
  local idle, back = {}, {}
  for _, id in ipairs(lost) do
    if exists(id) and not is_leased(id) then idle[#idle + 1] = id end
  end
  for _, id in ipairs(unlisted(CLEANING, unlisted(PROCESSING, unlisted(QUEUE, idle)))) do
    if find('in no list', id) then back[#back + 1] = id end
  end
  bring_back(back)
  return following
end

-- New entries come at the left end, so that reading on from there passes none over.
function compare.queue(cursor)
  local from = tonumber(cursor)
  local ids = call('LRANGE', QUEUE, from, from + SOME - 1)
  local again, out, stay = set_of(call('LRANGE', QUEUE, from + #ids, from + #ids + AHEAD - 1)), {}, 0
  for i = #ids, 1, -1 do -- from the right: of two, the one that is taken first stays
    local id = ids[i]
    local there = exists(id)
    local leased = there and is_leased(id)
    if not there or leased then
      if find(leased and 'worked on too' or 'no item', id) then
        out[#out + 1] = id
        if leased and not call('LPOS', PROCESSING, id) then call('LPUSH', PROCESSING, id) end
      else
        stay = stay + 1
      end
    elseif again[id] and find('twice', id) then
      call('LREM', QUEUE, 1, id)
    else
      stay = stay + 1
    end
    again[id] = true
  end
  take_out(QUEUE, out)
  return #ids < SOME and '0' or whole(from + stay)
end

function compare.processing(cursor)
  local from, out = tonumber(cursor), {}
  local ids = call('LRANGE', PROCESSING, from, from + MOST - 1)
  for _, id in ipairs(ids) do
    if not exists(id) and find('no item', id) then out[#out + 1] = id end
  end
  take_out(PROCESSING, out)
  return #ids < MOST and '0' or whole(from + #ids - #out)
end
