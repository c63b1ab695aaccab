#!lua flags=allow-oom
-- uses operations leases
-- Gives raw leases more time, counted from now. A job of a named holder lives by that holder's beat;
-- asking for more time for it is a beat.
--
-- ARGV     [4] lease time in ms  [5] n, then n ids, then n fences
-- returns  { the clock's reading, a digit for each: 1 still ours, 0 not ours any more, or cancelled }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = open()
if replayed then
  return type(replayed) == 'table' and replayed or { reading(), replayed }
end
measure('ZCARD', HELD, HOLDERS)
measure('HLEN', LEASES)

local lease_ms, count = tonumber(ARGV[4]), tonumber(ARGV[5])
local raw_holder = '.' .. ARGV[1] .. '.' .. ARGV[2]
local flags, left = {}, {}
for i = 1, count do
  local id, fence = ARGV[5 + i], tonumber(ARGV[5 + count + i])
  local text = call('HGET', LEASES, id)
  local lease = text and read_lease(text)
  if lease and lease.fence == fence and not lease.cancelled then
    flags[i] = '1'
    if is_raw(lease.holder) then
      call('ZREM', HELD, lease.holder .. '\0' .. id)
      call('ZADD', HELD, 0, raw_holder .. '\0' .. id)
      call('HSET', LEASES, id, write_lease(0, fence, lease.score, raw_holder))
      call('ZADD', HOLDERS, lease_end(lease_ms), raw_holder)
      left[lease.holder] = true
    else
      local ends = tonumber(call('ZSCORE', HOLDERS, lease.holder) or nil)
      if ends and ends > 0 then
        call('ZADD', HOLDERS, 'GT', lease_end(lease_ms), lease.holder)
      else
        flags[i] = '0' -- its holder was lost, and this job is about to be taken back
      end
    end
  else
    flags[i] = '0'
  end
end
for holder in pairs(left) do
  if holder ~= raw_holder then drop_holder_if_done(holder) end
end
flags = table.concat(flags)
close(flags)
return { reading(), flags }
