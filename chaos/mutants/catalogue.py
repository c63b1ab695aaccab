"""The mutants: which line of Windlass is changed, into what, and who should notice."""

from __future__ import annotations

from typing import NamedTuple

LUA = "storage/native/lua"


class Mutant(NamedTuple):
    """One bug. `old` stands once in the file. `hunters` are tried in turn: runs of chaos, or tests."""

    name: str
    file: str
    old: str
    new: str
    hunters: tuple[str, ...] = ("simulation", "run")


RUN = ("run", "simulation")
MUTANTS = (
    # -- settling ----------------------------------------------------------------------------------
    Mutant(
        "completing does not compare the fence",
        f"{LUA}/turn.lua",
        "if text and sub(text, 2, 9) == sub(fences, 8 * i - 7, 8 * i) then",
        "if text then",
    ),
    Mutant(
        "other outcomes do not compare the fence",
        f"{LUA}/turn.lua",
        "return lease and lease.fence == tonumber(fence) and lease",
        "return lease",
    ),
    Mutant(
        "a completed job keeps its lease",
        f"{LUA}/turn.lua",
        "    call('HDEL', LEASES, unpack(done))\n",
        "",
    ),
    Mutant(
        "a completed job stays in its holder's list",
        f"{LUA}/turn.lua",
        "    call('ZREM', HELD, unpack(members))\n",
        "",
    ),
    Mutant(
        "the data of a completed job stays",
        f"{LUA}/turn.lua",
        "    call('HDEL', DATA, unpack(done))\n",
        "",
    ),
    Mutant(
        "a completed job goes back to the queue",
        f"{LUA}/turn.lua",
        "    call('HDEL', DATA, unpack(done))\n",
        "    for _, id in ipairs(done) do call('ZADD', READY, 5 * PRIORITY_STEP, id) end\n",
    ),
    Mutant(
        "what waits behind a completed job is forgotten",
        f"{LUA}/turn.lua",
        "    if text then release_blocked(done[i], text) end",
        "    if text then call('HDEL', BLOCKED, done[i]) end",
    ),
    Mutant(
        "a retry is not counted",
        f"{LUA}/turn.lua",
        "      m.failures = m.failures + 1\n      set_mark(m, SUSPECT, false)",
        "      set_mark(m, SUSPECT, false)",
    ),
    Mutant(
        "a retry does not wait",
        f"{LUA}/turn.lua",
        "put_back(id, m, (kind == '0' and 0) or (kind == '1' and ms) or from_now(ms))",
        "put_back(id, m, 0)",
    ),
    Mutant(
        "a retried job keeps its old lease",
        f"{LUA}/turn.lua",
        "        touched[lease.holder] = true\n        end_lease(id, lease)\n",
        "        touched[lease.holder] = true\n",
    ),
    Mutant(
        "a job that failed for good is thrown away",
        f"{LUA}/turn.lua",
        "      m.failures = m.failures + 1\n      bury(id, m, FAILED, message, most_dead)",
        "      remove(id)",
    ),
    Mutant(
        "a released job is gone",
        f"{LUA}/turn.lua",
        "      put_back(id, m, 0, lease.score)\n      tell(id, 'released')",
        "      remove(id)",
    ),
    Mutant(
        "a released job goes to the end of the queue",
        f"{LUA}/turn.lua",
        "      put_back(id, m, 0, lease.score)\n      tell(id, 'released')",
        "      put_back(id, m, 0)",
    ),
    Mutant(
        "a released job is charged",
        f"{LUA}/turn.lua",
        "      put_back(id, m, 0, lease.score)\n      tell(id, 'released')",
        "      m.failures = m.failures + 1\n      put_back(id, m, 0, lease.score)",
    ),
    Mutant(
        "a crash is not charged",
        f"{LUA}/turn.lua",
        "      m.stalls = m.stalls + 1\n      if allowed",
        "      if allowed",
        RUN,
    ),
    Mutant(
        "the innocent are charged with a crash",
        f"{LUA}/turn.lua",
        "        set_mark(m, SUSPECT, true)\n        put_back(id, m, 0, lease.score)",
        "        m.stalls = m.stalls + 1\n        put_back(id, m, 0, lease.score)",
        ("run", "tests/worker/test_kills.py"),
    ),
    Mutant(
        "children come though their parent was another's",
        f"{LUA}/turn.lua",
        "    if ours[parent] and target == '' then",
        "    if target == '' then",
        ("run", "tests/native/test_hand_over.py"),
    ),
    Mutant(
        "children for other queues are dropped",
        f"{LUA}/turn.lua",
        "      call('ZADD', OUTBOX, seq, struct.pack(",
        "      local _ = (seq == 0) and call('ZADD', OUTBOX, seq, struct.pack(",
        RUN,
    ),
    # -- taking back ---------------------------------------------------------------------------------
    Mutant(
        "a lost lease is not counted",
        f"{LUA}/turn.lua",
        "          m.stalls = m.stalls + 1\n          if lease.cancelled",
        "          if lease.cancelled",
    ),
    Mutant(
        "what is taken back keeps its lease",
        f"{LUA}/turn.lua",
        "        end_lease(id, lease)\n        local m = read_meta(call('HGET', META, id))\n        m.priority",
        "        local m = read_meta(call('HGET', META, id))\n        m.priority",
    ),
    Mutant(
        "what is taken back goes to the end of the queue",
        f"{LUA}/turn.lua",
        "            put_back(id, m, 0, lease.score)\n            tell(id, 'stalled')",
        "            put_back(id, m, 0)",
    ),
    Mutant(
        "holders are called lost too early",
        f"{LUA}/turn.lua",
        "call('ZRANGE', HOLDERS, '-inf', now, 'BYSCORE', 'LIMIT', 0, 100)",
        "call('ZRANGE', HOLDERS, '-inf', now + 1500, 'BYSCORE', 'LIMIT', 0, 100)",
    ),
    Mutant(
        "lost holders are never swept",
        f"{LUA}/turn.lua",
        "  if is_raw(lost) or now >= state.grace or ended <= state.grace_from then",
        "  if now < 0 then",
    ),
    Mutant(
        "a silence of the server costs everybody their leases",
        f"{LUA}/turn.lua",
        "  if is_raw(lost) or now >= state.grace or ended <= state.grace_from then",
        "  if ended then",
        ("tests/native/test_clock.py",),
    ),
    Mutant(
        "a holder is forgotten before all it held is back",
        f"{LUA}/turn.lua",
        "      if #members < budget then\n        call('ZREM', HOLDERS, lost)",
        "      if true then\n        call('ZREM', HOLDERS, lost)",
        ("simulation", "tests/native/test_closing.py"),
    ),
    # -- leasing -------------------------------------------------------------------------------------
    Mutant(
        "the last come first",
        f"{LUA}/turn.lua",
        "local popped = call('ZPOPMIN', READY,",
        "local popped = call('ZPOPMAX', READY,",
    ),
    Mutant(
        "a batch is one job short",
        f"{LUA}/turn.lua",
        "return hand_out(table.concat(flags), base, ids, payloads, scores, wait, taken_back)",
        "if #ids > 1 then ids[#ids], payloads[#payloads], scores[#scores] = nil, nil, nil end\n"
        "return hand_out(table.concat(flags), base, ids, payloads, scores, wait, taken_back)",
    ),
    Mutant(
        "leases are shorter than they say",
        f"{LUA}/turn.lua",
        "  call('ZADD', HOLDERS, 'GT', lease_end(lease_ms), holder)",
        "  call('ZADD', HOLDERS, 'GT', lease_end(lease_ms / 10), holder)",
    ),
    Mutant(
        "a leased job stays in the queue",
        f"{LUA}/turn.lua",
        "  call('HSET', LEASES, unpack(leases))\n  call('ZADD', HELD, unpack(members))",
        "  call('ZADD', READY, scores[1], ids[1])\n"
        "  call('HSET', LEASES, unpack(leases))\n  call('ZADD', HELD, unpack(members))",
    ),
    Mutant(
        "jobs are leased to a holder that was called lost",
        f"{LUA}/turn.lua",
        "if wanted > 0 and ARGV[9] == '1' and (being_swept or not call('ZSCORE', HOLDERS, holder)) then",
        "if wanted > 0 and ARGV[9] == '1' and false then",
        ("simulation", "run", "tests/worker/test_kills.py"),
    ),
    # -- enqueueing ----------------------------------------------------------------------------------
    Mutant(
        "the last job of a batch is dropped",
        f"{LUA}/enqueue.lua",
        "redis.pcall('ZADD', READY, unpack(adds))\n",
        "redis.pcall('ZADD', READY, unpack(adds, 1, math.max(2, #adds - 2)))\n",
    ),
    Mutant(
        "payloads go to the next job of the batch",
        f"{LUA}/enqueue.lua",
        "    adds[i], adds[i + 1] = 5 * PRIORITY_STEP + seq, payloads[i]\n  end",
        "    adds[i], adds[i + 1] = 5 * PRIORITY_STEP + seq, payloads[i]\n"
        "    if i > 1 then payloads[i + 1] = ARGV[3 + i] end\n  end",
    ),
    Mutant(
        "a delayed job is ready at once",
        f"{LUA}/shared/waiting.lua",
        "  if run_at > due then\n    m.seq",
        "  if run_at > due + 3600000 then\n    m.seq",
    ),
    Mutant(
        "scheduled jobs come a second early",
        f"{LUA}/shared/waiting.lua",
        "call('ZRANGE', SCHEDULED, '-inf', due, 'BYSCORE', 'LIMIT', 0, most)",
        "call('ZRANGE', SCHEDULED, '-inf', due + 1000, 'BYSCORE', 'LIMIT', 0, most)",
    ),
    Mutant(
        "what was promoted stays scheduled",
        f"{LUA}/shared/waiting.lua",
        "  call('ZREM', SCHEDULED, unpack(members))\n",
        "",
    ),
    Mutant(
        "what was promoted is lost",
        f"{LUA}/shared/waiting.lua",
        "  call('ZADD', READY, unpack(adds))\n",
        "  call('ZADD', READY, adds[1], adds[2])\n",
    ),
    Mutant(
        "jobs of one run time come in any order",
        f"{LUA}/shared/meta.lua",
        "return struct.pack('>I8', seq) .. id",
        "return struct.pack('<I8', seq) .. id",
        ("tests/contract/test_schedule.py",),
    ),
    Mutant(
        "a delay counts half",
        f"{LUA}/shared/clock.lua",
        "return math.max(wall, due) + ms",
        "return math.max(wall, due) + ms / 2",
    ),
    # -- one at a time -------------------------------------------------------------------------------
    Mutant(
        "two jobs of one id run at a time",
        f"{LUA}/shared/arrivals.lua",
        "  if lease then return block(id, data, c) end\n",
        "",
    ),
    Mutant(
        "what waits behind a dead job is forgotten",
        f"{LUA}/shared/endings.lua",
        "  if text then release_blocked(id, text) end\n",
        "",
    ),
    Mutant(
        "what waited behind a job is placed nowhere",
        f"{LUA}/shared/endings.lua",
        "    min_backoff = c.min_backoff, max_backoff = c.max_backoff, seq = 0 }\n  place(id, m, c.run_at)",
        "    min_backoff = c.min_backoff, max_backoff = c.max_backoff, seq = 0 }",
    ),
    Mutant(
        "an update loses the new payload",
        f"{LUA}/shared/arrivals.lua",
        "  if has(c.flags, UPDATE_DATA) then call('HSET', DATA, id, data) end\n  if member and",
        "  if member and",
        ("simulation", "tests/contract/test_upsert.py"),
    ),
    # -- orders --------------------------------------------------------------------------------------
    Mutant(
        "extending does not compare the fence",
        f"{LUA}/extend.lua",
        "if lease and lease.fence == fence and not lease.cancelled then",
        "if lease and not lease.cancelled then",
    ),
    Mutant(
        "a heartbeat keeps nothing alive",
        f"{LUA}/beat.lua",
        "if known == '1' or (ARGV[6] == '1' and not ends) then",
        "if ARGV[6] == '1' and not ends then",
    ),
    Mutant(
        "a lost holder is told that all is well",
        f"{LUA}/beat.lua",
        "local known = ends and ends > 0 and '1' or '0'",
        "local known = '1'",
        ("simulation", "run", "tests/contract/test_recovery.py", "tests/contract/test_lease.py"),
    ),
    Mutant(
        "a cancelled job leaves its data",
        f"{LUA}/cancel.lua",
        "      call('HDEL', DATA, id)\n      call('HDEL', META, id)",
        "      call('HDEL', META, id)",
    ),
    Mutant(
        "cancelling says yes and does nothing",
        f"{LUA}/cancel.lua",
        "    flag = call('ZREM', READY, id)\n",
        "    flag = call('ZSCORE', READY, id) and 1 or 0\n    if flag == 1 then return { reading, '1' } end\n",
    ),
    Mutant(
        "a revived job stays among the dead",
        f"{LUA}/revive.lua",
        "    call('ZREM', DEAD, id)\n",
        "",
        ("tests/contract/test_outcomes.py",),
    ),
    Mutant(
        "what comes from an outbox twice arrives twice",
        f"{LUA}/forward.lua",
        "  if tonumber(ARGV[i]) > last then",
        "  if ARGV[i] then",
        ("tests/native/test_hand_over.py",),
    ),
    Mutant(
        "a tick is fired by everyone who sees it",
        f"{LUA}/tick.lua",
        "if not tick or math.floor(tick) ~= expected then",
        "if not tick then",
        ("tests/native/schedules",),
    ),
    # -- operations and clock ------------------------------------------------------------------------
    Mutant(
        "a repeat is done again",
        f"{LUA}/shared/operations.lua",
        "    if number == tonumber(ARGV[2]) then",
        "    if number == -1 then",
    ),
    Mutant(
        "answers are not remembered",
        f"{LUA}/shared/operations.lua",
        "  call('HSET', STATE, 'core', write_core(now), 'witness', state.witness, caller_field,",
        "  call('HSET', STATE, 'core', write_core(now), 'witness', state.witness, 'caller',",
    ),
    Mutant(
        "a request that comes late is done after a newer one",
        f"{LUA}/shared/operations.lua",
        "    elseif number > tonumber(ARGV[2]) then",
        "    elseif number == -1 then",
    ),
    Mutant(
        "a repeat finds its leases only among the first that a worker holds",
        f"{LUA}/turn.lua",
        "until found == count or #members < MOST",
        "until true",
        ("tests/native/test_operations.py",),
    ),
    Mutant(
        "a repeat writes nothing, so nobody waits for it",
        f"{LUA}/shared/operations.lua",
        "      call('HSET', STATE, caller_field, write_record(step, answer))\n",
        "",
        ("tests/values/test_durability.py",),
    ),
    Mutant(
        "leases follow the server's wall clock",
        f"{LUA}/shared/clock.lua",
        "    now = math.max(sure, math.min(state.clock + moved, sure + STEP_CAP))",
        "    now = wall",
    ),
    Mutant(
        "run times follow every jump of the clock",
        f"{LUA}/shared/clock.lua",
        "    due = wall - state.skew\n",
        "    due = wall\n",
    ),
    Mutant(
        "a pause is forgotten with the next step",
        f"{LUA}/shared/clock.lua",
        "(state.paused and PAUSED_MARK or 0) + ",
        "",
        ("tests/contract/test_pause_purge_clean.py",),
    ),
    Mutant(
        "who is lost is seen only when there is other work",
        f"{LUA}/turn.lua",
        " > 0 or #lost_holders > 0 then",
        " > 0 then",
    ),
    Mutant(
        "what is due is seen only when there is other work",
        f"{LUA}/turn.lua",
        "size[BLOCKED] + size[INBOX] + size[SCHEDULED] > 0",
        "size[BLOCKED] + size[INBOX] > 0",
    ),
    # -- the client ----------------------------------------------------------------------------------
    Mutant(
        "a release is sent as a completion",
        "storage/native/layout.py",
        'return (*name, "l", 0, 0, "")',
        'return (*name, "d", 0, 0, "")',
        ("tests/contract/test_settle.py",),
    ),
    Mutant(
        "leases have the fence of their neighbour",
        "storage/native/layout.py",
        "        queue, fence = self.queue, int(base)\n",
        "        queue, fence = self.queue, int(base) + 1\n",
    ),
    Mutant(
        "outcomes are mixed up within a batch",
        "storage/native/layout.py",
        "    first, second = iter(accepted), iter(accepted[sum(plain) :])\n",
        "    first, second = iter(accepted), iter(accepted)\n",
        ("simulation", "tests/contract/test_settle.py"),
    ),
    Mutant(
        "a repeat gets a number of its own",
        "transport/session.py",
        "                if call.when_repeated:\n",
        "                command = command.replace(caller.name.encode(), random_id().encode())\n"
        "                if call.when_repeated:\n",
    ),
    Mutant(
        "what may have happened is said not to have",
        "transport/session.py",
        "                may_have_happened = may_have_happened or call.writes\n",
        "",
    ),
    Mutant(
        "a script that is not known counts as run",
        "transport/session.py",
        "                if not isinstance(reply, RedisError):\n                    return reply, safe",
        "                if not isinstance(reply, RedisError) or isinstance(reply, NoScriptError):\n"
        "                    return reply, safe",
    ),
    Mutant(
        "everysec is called fsync",
        "transport/confirmation.py",
        'return {b"always": FSYNC, b"everysec": EVERYSEC}',
        'return {b"always": FSYNC, b"everysec": FSYNC}',
        ("tests/values/test_durability.py",),
    ),
    Mutant(
        "nobody looks how many replicas answered",
        "transport/confirmation.py",
        "return replicated(on_replicas) if safe >= FSYNC and on_replicas else safe",
        "return level if level.replicas and safe >= FSYNC else safe",
        ("tests/values/test_durability.py",),
    ),
    Mutant(
        "WAITAOF is trusted where it answers too early",
        "transport/server_facts.py",
        "            return (7, 2) <= self.version < (8, 0)",
        "            return (7, 2) <= self.version",
        ("tests/values/test_durability.py",),
    ),
    Mutant(
        "checksums are not compared",
        "storage/native/records.py",
        "if stored[-_SUM:] == _WITH_CRC.pack(crc32(data), _CRC):",
        "if stored[-1:] == _CRC:",
        ("tests/native/test_bit_rot.py",),
    ),
    # -- the worker ----------------------------------------------------------------------------------
    Mutant(
        "a job in a thread waits for the one before it, however long that takes",
        "worker/executors/threads.py",
        "self._look = self._loop.call_later(OVERDUE, self._help_out)",
        "pass",
        ("tests/worker/test_edges.py",),
    ),
    Mutant(
        "what was fetched ahead waits for as long as the job before it takes",
        "worker/executors/base.py",
        "if not self._standby or len(self.running) < self.limit or silence < STUCK:",
        "if silence >= 0:",
        ("tests/worker/test_edges.py",),
    ),
    Mutant(
        "a probe does not see when leases end",
        "storage/native/lua/probe.lua",
        "if call('EXISTS', KEYS[6]) == 1 then",
        "if false then",
        ("tests/worker/test_idle.py",),
    ),
    Mutant(
        "outcomes of a turn that failed are forgotten",
        "worker/runner/queue_consumer.py",
        "            self.outcomes = sent + self.outcomes\n",
        "            pass\n",
        ("tests/worker/test_server_faults.py",),
    ),
    Mutant(
        "the supervisor sends no heartbeats",
        "worker/supervisor/supervisor.py",
        "                    if queue not in group.beating:\n",
        "                    if queue not in group.beating and group.why:\n",
        ("tests/worker/test_hostile.py::test_jobs_that_hold_the_interpreter_for_many_leases_run_once",),
    ),
    Mutant(
        "the supervisor gives back nothing",
        "worker/supervisor/supervisor.py",
        "        await self._give_back(group, ending)\n",
        "",
        ("run", "tests/worker/test_kills.py"),
    ),
    Mutant(
        "children outlive their runner",
        "worker/supervisor/runner_group.py",
        '            child.why = child.why or "shutdown"\n            child.forked.signal(signal.SIGKILL)\n',
        '            child.why = child.why or "shutdown"\n',
        ("tests/worker/test_kills.py",),
    ),
    Mutant(
        "jobs go on when their leases could not be kept",
        "worker/supervisor/supervisor.py",
        "        if group.why:\n            return  # it is being ended already\n",
        "        if group:\n            return\n",
        ("tests/chaos/test_pauses.py", "tests/worker/test_partial_faults.py"),
    ),
    Mutant(
        "stopping charges the jobs that it gives back",
        "worker/runner/runner.py",
        "            for plan in executor.give_up_standby():\n                self._settle(Released(plan.lease))\n",
        "            for plan in executor.give_up_standby():\n"
        '                self._settle(Retried(plan.lease, None, ""))\n',
        ("tests/worker/test_stopping.py",),
    ),
    Mutant(
        "notes are not compared with a server that was restored",
        "worker/runner/runner.py",
        "        if consumer.in_doubt:\n",
        "        if consumer.in_doubt and consumer.comparing:\n",
        ("tests/worker/test_rewinds.py",),
    ),
    # -- jobs that cannot be decoded ---------------------------------------------------------------------
    Mutant(
        "a queue keeps any number of broken jobs",
        f"{LUA}/turn.lua",
        "if call('ZCARD', BROKEN) >= max_broken and not call('ZSCORE', BROKEN, id) then",
        "if false then",
        ("simulation", "tests/contract/test_outcomes.py"),
    ),
    Mutant(
        "the oldest broken jobs are dropped",
        f"{LUA}/shared/endings.lua",
        "    add_dead_record(BROKEN, id, dead_record)\n",
        "    add_dead_record(BROKEN, id, dead_record)\n"
        "    if call('ZCARD', BROKEN) > 2 then call('ZREMRANGEBYRANK', BROKEN, 0, 0) end\n",
    ),
    Mutant(
        "dropped dead jobs are not counted",
        f"{LUA}/shared/endings.lua",
        "  dropped = dropped + excess\n",
        "",
        ("tests/contract/test_outcomes.py",),
    ),
    Mutant(
        "a worker that cannot decode jobs goes on taking them",
        "worker/runner/runner.py",
        "            outcome = consumer.guard.undecodable(outcome)\n",
        "            pass\n",
        ("tests/worker/test_undecodable.py",),
    ),
    Mutant(
        "a program with wrong keys moves a whole queue to broken",
        "queue.py",
        "            if guard.suspended or guard.check_run():\n",
        "            if guard.suspended:\n",
        ("tests/security/test_sealed_queue.py",),
    ),
    # -- jobs that lie ready for a child -----------------------------------------------------------------
    Mutant(
        "a job is taken from a child that was about to begin it",
        "worker/executors/processes.py",
        '            self._prefetch.put(self._number, job if len(job) <= LARGEST else b"")\n',
        "",
        ("tests/worker/test_prefetch.py",),
    ),
    Mutant(
        "what lay ready for a child that died is forgotten",
        "worker/executors/processes.py",
        "            self._to_standby(others)\n",
        "",
        ("tests/worker/test_prefetch.py",),
    ),
    Mutant(
        "a job that was not begun is blamed for the death of its child",
        "worker/executors/processes.py",
        "not_begun = self._number in left or self.stream.unheard",
        "not_begun = self.stream.unheard",
        ("tests/worker/test_prefetch.py",),
    ),
    Mutant(
        "what a child began unseen cannot be stopped",
        "worker/executors/processes.py",
        "            self._condemned.setdefault(key, why)\n",
        "",
        ("tests/worker/test_prefetch.py",),
    ),
    Mutant(
        "what lies behind a long job stays with its child",
        "worker/executors/processes.py",
        "if child.ready and child.heard_at < late",
        "if child.ready and child.heard_at < 0",
        ("tests/worker/test_prefetch.py",),
    ),
    Mutant(
        "an answer is taken for the one that is waited for",
        "worker/executors/processes.py",
        "            if about == self._number:\n",
        "            if about:\n",
        ("tests/worker/test_prefetch.py",),
    ),
    Mutant(
        "a probe goes by its caller's clock alone",
        f"{LUA}/probe.lua",
        "math.max(ARGV[2], clock)",
        "ARGV[2]",
        ("tests/worker/test_idle.py",),
    ),
)
