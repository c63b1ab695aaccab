#!lua flags=allow-oom
-- uses operations leases
-- Extends raw leases, counted from now. For a job of a named holder it is a beat of that holder.
--
-- ARGV     [4] lease time in ms  [5] n, then n ids, then n fences
-- returns  { the clock's reading, a digit for each lease: 1 extended, 0 lost or cancelled }
-- errors   FORMAT, STALEOP, WRONGTYPE; nothing is written then.

local repeated = begin_op()
if repeated then
  return type(repeated) == 'table' and repeated or { reading(), repeated }
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
        flags[i] = '0' -- its holder was declared lost, and the next sweep takes the job back
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
commit_op(flags)
return { reading(), flags }
