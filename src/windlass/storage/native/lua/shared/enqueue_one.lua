-- Enqueueing a job whose id may be in use. Needs the sizes of READY, SCHEDULED, LEASES, DATA, META and BLOCKED.

-- Merges a change that was not blocked. Returns the new run time.
local function merge_now(m, run_at, c)
  local new_run_at = merge(m, run_at, c)
  set_expiry(m, new_run_at, new_run_at ~= run_at)
  return new_run_at
end

-- Changes a waiting job in place.
local function update(id, data, c, score, m)
  if score then m.priority = math.floor(score / PRIORITY_STEP) end
  local member = m.seq > 0 and scheduled_member(m.seq, id)
  local run_at = member and tonumber(call('ZSCORE', SCHEDULED, member)) or 0
  local new_run_at = merge_now(m, run_at, c)
  drop_empty_extras(m)
  if has(c.flags, UPDATE_DATA) then call('HSET', DATA, id, data) end
  if member and new_run_at == run_at then
    save_or_delete_meta(id, m, true)
  elseif member then
    call('ZREM', SCHEDULED, member)
    place(id, m, new_run_at)
  elseif new_run_at > due then
    call('ZREM', READY, id)
    place(id, m, new_run_at)
  else
    call('ZADD', READY, m.priority * PRIORITY_STEP + score % PRIORITY_STEP, id)
    save_or_delete_meta(id, m, false)
  end
end

-- Stores a change that waits behind the running job of the same id. Several changes are merged into one: a field is
-- updated if any of them updates it, to the value of the last one. "If later" and "if earlier" compare with the run
-- time of the blocked change. An expired one counts as absent. Also returns whether the change is the only one.
local function block(id, data, c)
  local text = call('HGET', BLOCKED, id)
  local b = text and read_blocked(text)
  c.data = data
  if not b or is_past_expiry(b) then
    if has(c.flags, MUST_EXIST) then return 'm' end
    set_expiry(c, c.run_at)
    call('HSET', BLOCKED, id, write_blocked(c))
    return 'b', true
  end
  local old_mode, new_mode = run_at_mode(b.flags), run_at_mode(c.flags)
  local flags = 0
  for _, flag in ipairs({ UPDATE_DATA, UPDATE_MAX_FAILURES, UPDATE_MAX_STALLS, UPDATE_MIN_BACKOFF, UPDATE_MAX_BACKOFF, RESET_COUNTS, UPDATE_PRIORITY,
    LIMITS_GIVEN, REPLACE_EXTRAS }) do
    if has(b.flags, flag) or has(c.flags, flag) then flags = flags + flag end
  end
  if has(b.flags, KEEP_EXTRAS) and has(c.flags, KEEP_EXTRAS) then flags = flags + KEEP_EXTRAS end
  local mode = (new_mode == 0 and old_mode) or (old_mode == ALWAYS and ALWAYS) or new_mode
  b.run_at = merge_now(b, b.run_at, c)
  if has(c.flags, UPDATE_DATA) then b.data = data end
  b.flags = flags + mode * RUN_AT
  call('HSET', BLOCKED, id, write_blocked(b))
  return 'b'
end

-- Applies one enqueue. Returns a added, u updated, k kept, b blocked, m missing. The caller passes the score, lease and
-- META record it found under the id, and stores the data of a job that was added.
--
-- A waiting job that has expired counts as absent, because it would take the new one with it. A new job takes its place;
-- without one, a turn drops it.
local function upsert(id, data, text, score, lease, meta)
  local c = read_change(text)
  local m = meta and read_meta(meta)
  local here = score or (m and m.seq > 0)
  if here and m and is_past_expiry(m) then
    if has(c.flags, MUST_EXIST) then return 'm' end
    call('ZREM', score and READY or SCHEDULED, score and id or scheduled_member(m.seq, id))
    here = false
  end
  if (here or lease) and has(c.flags, KEEP) then return 'k' end
  if lease then return block(id, data, c) end
  if here then
    update(id, data, c, score and tonumber(score), m or read_meta())
    return 'u'
  end
  if has(c.flags, MUST_EXIST) then return 'm' end
  set_expiry(c, c.run_at)
  drop_empty_extras(c)
  c.failures, c.stalls, c.seq, c.marks = 0, 0, 0, has(c.flags, LIMITS_GIVEN) and LIMITED or 0
  place(id, c, c.run_at)
  return 'a'
end
