-- Inconsistencies of a Redis Work Queue beside its ledger.
--
--   items        item in no list and without a lease, because a program died between two commands → to the back
--   queue        id without an item → dropped; running → moved to `processing`, as a lease does; second entry of an id → dropped
--                here. A step finds duplicates only within LOOKAHEAD entries: in a longer list the lease of the second entry
--                finds it
--   processing   id without an item → dropped
--
-- An id in two other lists may be one that a peer moves at this moment: if it stays, a sweep repairs it.

local MAX_ENTRIES, LOOKAHEAD = 300, 2700 -- entries that one step checks, and entries in which it finds duplicates

-- Items without a lease: only these are searched in the lists.
local function orphans(cursor)
  local pattern = string.gsub(item(''), '[%[%]%?%*\\]', '\\%0') .. '*'
  local found, ids = call('SCAN', cursor, 'MATCH', pattern, 'COUNT', MAX_ITEMS, 'TYPE', 'string'), {}
  for _, key in ipairs(found[2]) do
    local id = string.sub(key, #item('') + 1)
    if not is_leased(id) then ids[#ids + 1] = id end
  end
  return found[1], ids
end

function compare.items(cursor)
  local following, lost = search({ QUEUE, PROCESSING, CLEANING }, cursor, orphans)
  local idle, back = {}, {}
  for _, id in ipairs(lost) do
    if exists(id) and not is_leased(id) then idle[#idle + 1] = id end
  end
  for _, id in ipairs(unlisted(CLEANING, unlisted(PROCESSING, unlisted(QUEUE, idle)))) do
    if report('in no list', id) then back[#back + 1] = id end
  end
  bring_back(back)
  return following
end

-- Clients push at the left end, so reading on from there skips no entry.
function compare.queue(cursor)
  local from = tonumber(cursor)
  local ids = call('LRANGE', QUEUE, from, from + MAX_ENTRIES - 1)
  local seen, gone_ids, kept = set_of(call('LRANGE', QUEUE, from + #ids, from + #ids + LOOKAHEAD - 1)), {}, 0
  for i = #ids, 1, -1 do -- from the right: of two, the one that is taken first stays
    local id = ids[i]
    local there = exists(id)
    local leased = there and is_leased(id)
    if not there or leased then
      if report(leased and 'running too' or 'no item', id) then
        gone_ids[#gone_ids + 1] = id
        if leased and not call('LPOS', PROCESSING, id) then call('LPUSH', PROCESSING, id) end
      else
        kept = kept + 1
      end
    elseif seen[id] and report('twice', id) then
      call('LREM', QUEUE, 1, id)
    else
      kept = kept + 1
    end
    seen[id] = true
  end
  take_out(QUEUE, gone_ids)
  return #ids < MAX_ENTRIES and '0' or whole(from + kept)
end

function compare.processing(cursor)
  local from, gone_ids = tonumber(cursor), {}
  local ids = call('LRANGE', PROCESSING, from, from + MAX_ITEMS - 1)
  for _, id in ipairs(ids) do
    if not exists(id) and report('no item', id) then gone_ids[#gone_ids + 1] = id end
  end
  take_out(PROCESSING, gone_ids)
  return #ids < MAX_ITEMS and '0' or whole(from + #ids - #gone_ids)
end
