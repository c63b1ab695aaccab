#!lua
-- uses operations meta changes wake waiting
-- Adds jobs, or changes those whose ids are there already. Without `allow-oom`: a full server refuses
-- new jobs before anything is written, and goes on settling the old ones.
--
-- ARGV     [4] "1" when every id was just made up by the caller and cannot be here yet
--          [5…] for each job: id, data, change (see CHANGE in shared/changes.lua). Ids are distinct within one call.
-- returns  { the clock's reading, one letter for each job: a added, u updated, k kept, b blocked, m missing (update of no job) }
-- errors   STALEOP, WRONGTYPE; nothing is written then.

local replayed = open()
if replayed then
  return type(replayed) == 'table' and replayed or { reading, replayed }
end
measure('ZCARD', READY)
measure('HLEN', DATA, LEASES)
if call('EXISTS', SCHEDULED, IDLE, META, BLOCKED) > 0 then
  measure('ZCARD', SCHEDULED, IDLE)
  measure('HLEN', META, BLOCKED)
end
promote(MOST) -- before new jobs get their sequence: what was due earlier goes first

local jobs = (#ARGV - 4) / 3
local fresh = ARGV[4] == '1'
local scores, leases, metas = {}, {}, {}
if not fresh then
  local ids = {}
  for i = 1, jobs do ids[i] = ARGV[2 + 3 * i] end
  if size[READY] > 0 then scores = call('ZMSCORE', READY, unpack(ids)) end
  if size[LEASES] > 0 then leases = call('HMGET', LEASES, unpack(ids)) end
  if size[META] > 0 then metas = call('HMGET', META, unpack(ids)) end
end

-- A job that waits: change it in place.
local function update(id, data, c, score, meta_text)
  local m = read_meta(meta_text)
  if score then m.priority = math.floor(score / PRIORITY_STEP) end
  local member = m.seq > 0 and scheduled_member(m.seq, id)
  local run_at = member and tonumber(call('ZSCORE', SCHEDULED, member)) or 0
  local new_run_at = merge(m, run_at, c)
  if has(c.flags, UPDATE_DATA) then call('HSET', DATA, id, data) end
  if member and new_run_at == run_at then
    keep_meta(id, m, true)
  elseif member then
    call('ZREM', SCHEDULED, member)
    place(id, m, new_run_at)
  elseif new_run_at > due then
    call('ZREM', READY, id)
    place(id, m, new_run_at)
  else
    call('ZADD', READY, m.priority * PRIORITY_STEP + score % PRIORITY_STEP, id)
    keep_meta(id, m, false)
  end
end

-- A job that runs: what is asked for waits behind it. Several such changes are folded into one: what any of them updates
-- is updated, to what the last of them says. "If later" and "if earlier" compare with the run time that waits.
local function block(id, data, c)
  local text = call('HGET', BLOCKED, id)
  c.data = data
  if not text then
    if has(c.flags, MUST_EXIST) then return 'm' end
    call('HSET', BLOCKED, id, write_blocked(c))
    return 'b'
  end
  local b = read_blocked(text)
  local old_mode, new_mode = run_at_mode(b.flags), run_at_mode(c.flags)
  local flags = 0
  for _, flag in ipairs({ UPDATE_DATA, UPDATE_MAX_FAILURES, UPDATE_MAX_STALLS, UPDATE_MIN_BACKOFF, UPDATE_MAX_BACKOFF, RESET_COUNTS, UPDATE_PRIORITY }) do
    if has(b.flags, flag) or has(c.flags, flag) then flags = flags + flag end
  end
  local mode = (new_mode == 0 and old_mode) or (old_mode == ALWAYS and ALWAYS) or new_mode
  b.run_at = merge(b, b.run_at, c)
  if has(c.flags, UPDATE_DATA) then b.data = data end
  b.flags = flags + mode * RUN_AT
  call('HSET', BLOCKED, id, write_blocked(b))
  return 'b'
end

local answer, adds, payloads = {}, {}, {}
for i = 1, jobs do
  local id, data, text = ARGV[2 + 3 * i], ARGV[3 + 3 * i], ARGV[4 + 3 * i]
  local here = scores[i] or (metas[i] and read_meta(metas[i]).seq > 0)
  if text == '' and not here and not leases[i] then
    adds[#adds + 1] = 5 * PRIORITY_STEP + next_seq()
    adds[#adds + 1] = id
    payloads[#payloads + 1] = id
    payloads[#payloads + 1] = data
    answer[i] = 'a'
  else
    local c = read_change(text)
    if (here or leases[i]) and has(c.flags, KEEP) then
      answer[i] = 'k'
    elseif leases[i] then
      answer[i] = block(id, data, c)
    elseif here then
      update(id, data, c, scores[i] and tonumber(scores[i]), metas[i])
      answer[i] = 'u'
    elseif has(c.flags, MUST_EXIST) then
      answer[i] = 'm'
    else
      c.failures, c.stalls, c.seq = 0, 0, 0
      payloads[#payloads + 1] = id
      payloads[#payloads + 1] = data
      place(id, c, c.run_at)
      answer[i] = 'a'
    end
  end
end
if #adds > 0 then
  call('ZADD', READY, unpack(adds))
  came = came + #adds / 2
end
if #payloads > 0 then call('HSET', DATA, unpack(payloads)) end

answer = table.concat(answer)
close(answer)
wake(came)
return { reading, answer }
