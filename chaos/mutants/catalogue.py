"""The mutants: the changed line of each, its replacement, and the runs or tests that must fail."""

from __future__ import annotations

from typing import NamedTuple

LUA = "storage/native/lua"


class Mutant(NamedTuple):
    """One bug. `old` occurs exactly once in the file. `hunters` are tried in turn: chaos runs, or tests."""

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
        "if text and sub(text, FENCE_AT, FENCE_AT + 7) == sub(fences, 8 * i - 7, 8 * i) then",
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
        "the job blocked by a completed job is dropped",
        f"{LUA}/turn.lua",
        "    if text then start_blocked_job(done[i], text) end",
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
        "place_again(id, m, (kind == '0' and 0) or (kind == '1' and tonumber(ms)) or from_now(tonumber(ms)))",
        "place_again(id, m, 0)",
    ),
    Mutant(
        "a retried job keeps its old lease",
        f"{LUA}/turn.lua",
        "        settled_holders[lease.holder] = true\n        end_lease(id, lease)\n",
        "        settled_holders[lease.holder] = true\n",
    ),
    Mutant(
        "a permanently failed job is deleted",
        f"{LUA}/turn.lua",
        "      m.failures = m.failures + 1\n      end_for_good(id, m, FAILED, message, max_dead)",
        "      remove(id)",
    ),
    Mutant(
        "a released job is deleted",
        f"{LUA}/turn.lua",
        "      place_again(id, m, 0, lease.score)\n      publish_event(id, 'released')",
        "      remove(id)",
    ),
    Mutant(
        "a released job goes to the end of the queue",
        f"{LUA}/turn.lua",
        "      place_again(id, m, 0, lease.score)\n      publish_event(id, 'released')",
        "      place_again(id, m, 0)",
    ),
    Mutant(
        "a release counts as a stall",
        f"{LUA}/turn.lua",
        "      place_again(id, m, 0, lease.score)\n      publish_event(id, 'released')",
        "      m.failures = m.failures + 1\n      place_again(id, m, 0, lease.score)",
    ),
    Mutant(
        "a crash is not counted",
        f"{LUA}/turn.lua",
        "      m.stalls = m.stalls + 1\n      if tonumber(task_max_stalls)",
        "      if tonumber(task_max_stalls)",
        RUN,
    ),
    Mutant(
        "a crash is counted for all jobs of the process",
        f"{LUA}/turn.lua",
        "      set_mark(m, SUSPECT, true)\n      place_again(id, m, 0, lease.score)",
        "      m.stalls = m.stalls + 1\n      place_again(id, m, 0, lease.score)",
        ("run", "tests/worker/test_kills.py"),
    ),
    Mutant(
        "jobs are handed over with a stale parent lease",
        f"{LUA}/turn.lua",
        "    if accepted[parent] and target == '' then",
        "    if target == '' then",
        ("run", "tests/native/test_hand_over.py"),
    ),
    Mutant(
        "jobs handed over to other queues are lost",
        f"{LUA}/turn.lua",
        "      call('ZADD', OUTBOX, seq, struct.pack(",
        "      local _ = (seq == 0) and call('ZADD', OUTBOX, seq, struct.pack(",
        RUN,
    ),
    # -- reclaiming ----------------------------------------------------------------------------------
    Mutant(
        "a lost lease is not counted",
        f"{LUA}/turn.lua",
        "          m.stalls = m.stalls + 1\n          if lease.cancelled",
        "          if lease.cancelled",
    ),
    Mutant(
        "a reclaimed job keeps its lease",
        f"{LUA}/turn.lua",
        "        end_lease(id, lease)\n        local m = read_meta(call('HGET', META, id))\n        m.priority",
        "        local m = read_meta(call('HGET', META, id))\n        m.priority",
    ),
    Mutant(
        "a reclaimed job goes to the end of the queue",
        f"{LUA}/turn.lua",
        "            place_again(id, m, 0, lease.score)\n            publish_event(id, 'stalled')",
        "            place_again(id, m, 0)",
    ),
    Mutant(
        "holders are declared lost too early",
        f"{LUA}/turn.lua",
        "call('ZRANGE', HOLDERS, '-inf', now, 'BYSCORE', 'LIMIT', 0, 100)",
        "call('ZRANGE', HOLDERS, '-inf', now + 1500, 'BYSCORE', 'LIMIT', 0, 100)",
    ),
    Mutant(
        "lost holders are never swept",
        f"{LUA}/turn.lua",
        "  if is_raw(lost_holder) or now >= state.grace or ended <= state.grace_from then",
        "  if now < 0 then",
    ),
    Mutant(
        "a sweep counts entries without a lease as jobs",
        f"{LUA}/turn.lua",
        "        examined = examined + 1\n",
        "        examined = examined + 1\n        swept = swept + ((not lease) and 1 or 0)\n",
        ("tests/native/test_audit.py::test_a_sweep_counts_jobs_and_not_entries_without_a_lease",),
    ),
    Mutant(
        "a server outage expires all leases",
        f"{LUA}/turn.lua",
        "  if is_raw(lost_holder) or now >= state.grace or ended <= state.grace_from then",
        "  if ended then",
        ("tests/native/test_clock.py",),
    ),
    Mutant(
        "a holder is deleted before all its jobs are reclaimed",
        f"{LUA}/turn.lua",
        "      if #members < budget then\n        call('ZREM', HOLDERS, lost_holder)",
        "      if true then\n        call('ZREM', HOLDERS, lost_holder)",
        ("simulation", "tests/native/test_closing.py"),
    ),
    # -- leasing -------------------------------------------------------------------------------------
    Mutant(
        "jobs are leased last in, first out",
        f"{LUA}/turn.lua",
        "local popped = call('ZPOPMIN', READY,",
        "local popped = call('ZPOPMAX', READY,",
    ),
    Mutant(
        "a batch has one job too few",
        f"{LUA}/turn.lua",
        "return turn_reply(table.concat(flags), base, ids, payloads, metas, scores, wait, swept)",
        "if #ids > 1 then ids[#ids], payloads[#payloads], scores[#scores] = nil, nil, nil end\n"
        "return turn_reply(table.concat(flags), base, ids, payloads, metas, scores, wait, swept)",
    ),
    Mutant(
        "leases are shorter than reported",
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
        "jobs are leased to a lost holder",
        f"{LUA}/turn.lua",
        "if wanted > 0 and ARGV[9] == '1' and (caller_is_lost or not call('ZSCORE', HOLDERS, holder)) then",
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
        "    adds[i], adds[i + 1] = IMPLIED_PRIORITY * PRIORITY_STEP + seq, payloads[i]\n  end",
        "    adds[i], adds[i + 1] = IMPLIED_PRIORITY * PRIORITY_STEP + seq, payloads[i]\n"
        "    if i > 1 then payloads[i + 1] = ARGV[3 + i] end\n  end",
    ),
    Mutant(
        "a delayed job is ready at once",
        f"{LUA}/shared/place_job.lua",
        "  if run_at > due then\n    m.seq",
        "  if run_at > due + 3600000 then\n    m.seq",
    ),
    Mutant(
        "scheduled jobs are promoted a second early",
        f"{LUA}/shared/place_job.lua",
        "call('ZRANGE', SCHEDULED, '-inf', due, 'BYSCORE', 'LIMIT', 0, limit)",
        "call('ZRANGE', SCHEDULED, '-inf', due + 1000, 'BYSCORE', 'LIMIT', 0, limit)",
    ),
    Mutant(
        "a promoted job stays scheduled",
        f"{LUA}/shared/place_job.lua",
        "  call('ZREM', SCHEDULED, unpack(members))\n",
        "",
    ),
    Mutant(
        "a promoted job is lost",
        f"{LUA}/shared/place_job.lua",
        "  call('ZADD', READY, unpack(adds))\n",
        "  call('ZADD', READY, adds[1], adds[2])\n",
    ),
    Mutant(
        "jobs with equal run times lose their order",
        f"{LUA}/shared/meta.lua",
        "return struct.pack('>I8', seq) .. id",
        "return struct.pack('<I8', seq) .. id",
        ("tests/contract/test_schedule.py",),
    ),
    Mutant(
        "delays are halved",
        f"{LUA}/shared/clock.lua",
        "return math.max(wall, due) + ms",
        "return math.max(wall, due) + ms / 2",
    ),
    # -- blocked ids ---------------------------------------------------------------------------------
    Mutant(
        "two jobs with one id run at once",
        f"{LUA}/shared/enqueue_one.lua",
        "  if lease then return block(id, data, c) end\n",
        "",
    ),
    Mutant(
        "the job blocked by a dead job is dropped",
        f"{LUA}/shared/finish_job.lua",
        "  if text then start_blocked_job(id, text) end\n",
        "",
    ),
    Mutant(
        "an unblocked job is not placed in the queue",
        f"{LUA}/shared/finish_job.lua",
        "LIMITED or 0\n  place(id, c, c.run_at)",
        "LIMITED or 0",
    ),
    Mutant(
        "an update loses the new payload",
        f"{LUA}/shared/enqueue_one.lua",
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
        "a heartbeat renews no lease",
        f"{LUA}/beat.lua",
        "if known == '1' or (ARGV[6] == '1' and not ends) then",
        "if ARGV[6] == '1' and not ends then",
    ),
    Mutant(
        "the heartbeat of a lost holder is accepted",
        f"{LUA}/beat.lua",
        "local known = ends and ends > 0 and '1' or '0'",
        "local known = '1'",
        ("simulation", "run", "tests/contract/test_recovery.py", "tests/contract/test_lease.py"),
    ),
    Mutant(
        "a cancelled job leaves its data behind",
        f"{LUA}/cancel.lua",
        "      call('HDEL', DATA, id)\n      call('HDEL', META, id)",
        "      call('HDEL', META, id)",
    ),
    Mutant(
        "cancel answers yes and does nothing",
        f"{LUA}/cancel.lua",
        "    flag = call('ZREM', READY, id)\n",
        "    flag = call('ZSCORE', READY, id) and 1 or 0\n    if flag == 1 then return { reading, '1' } end\n",
    ),
    Mutant(
        "a revived job keeps its dead record",
        f"{LUA}/revive.lua",
        "    call('ZREM', DEAD, id)\n",
        "",
        ("tests/contract/test_outcomes.py",),
    ),
    Mutant(
        "a job forwarded twice arrives twice",
        f"{LUA}/forward.lua",
        "  if tonumber(ARGV[i]) > last then",
        "  if ARGV[i] then",
        ("tests/native/test_hand_over.py",),
    ),
    Mutant(
        "each ticker fires the same tick",
        f"{LUA}/tick.lua",
        "if not tick or math.floor(tick) ~= expected then",
        "if not tick then",
        ("tests/native/schedules",),
    ),
    # -- operations and clock ------------------------------------------------------------------------
    Mutant(
        "a repeated call is executed again",
        f"{LUA}/shared/operations.lua",
        "    if number == tonumber(ARGV[2]) then",
        "    if number == -1 then",
    ),
    Mutant(
        "answers are not remembered",
        f"{LUA}/shared/operations.lua",
        "  call('HSET', STATE, 'core', write_core(now), 'evidence', state.evidence, caller_field,",
        "  call('HSET', STATE, 'core', write_core(now), 'evidence', state.evidence, 'caller',",
    ),
    Mutant(
        "a late request is executed after a newer one",
        f"{LUA}/shared/operations.lua",
        "    elseif number > tonumber(ARGV[2]) then",
        "    elseif number == -1 then",
    ),
    Mutant(
        "a repeated call finds only the first leases of its worker",
        f"{LUA}/turn.lua",
        "until found == count or #members < MAX_ITEMS",
        "until true",
        ("tests/native/test_operations.py",),
    ),
    Mutant(
        "a repeated call writes nothing, so no sync is awaited",
        f"{LUA}/shared/operations.lua",
        "      call('HSET', STATE, caller_field, write_record(step, answer))\n",
        "",
        ("tests/values/test_durability.py",),
    ),
    Mutant(
        "leases follow the server's wall clock",
        f"{LUA}/shared/clock.lua",
        "    now = math.max(confirmed, math.min(state.clock + moved, confirmed + MAX_STEP_MS))",
        "    now = wall",
    ),
    Mutant(
        "run times follow every jump of the clock",
        f"{LUA}/shared/clock.lua",
        "    due = wall - state.skew\n",
        "    due = wall\n",
    ),
    Mutant(
        "a queue's pause ends with the next step",
        f"{LUA}/shared/clock.lua",
        "(state.paused and PAUSED_MARK or 0) + ",
        "",
        ("tests/contract/test_pause_purge_clean.py",),
    ),
    Mutant(
        "lost holders are noticed only when there is other work",
        f"{LUA}/turn.lua",
        " > 0 or #lost_holders > 0 then",
        " > 0 then",
    ),
    Mutant(
        "due jobs are noticed only when there is other work",
        f"{LUA}/turn.lua",
        "size[BLOCKED] + size[INBOX] + size[SCHEDULED] > 0",
        "size[BLOCKED] + size[INBOX] > 0",
    ),
    # -- the client ----------------------------------------------------------------------------------
    Mutant(
        "a release is sent as a completion",
        "storage/native/layout.py",
        'return (*name, "release", 0)',
        'return (*name, "complete", 2, 0, b"")',
        ("tests/contract/test_settle.py",),
    ),
    Mutant(
        "leases get the fence of the next lease",
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
        "a repeated call gets a new operation number",
        "transport/session.py",
        "        if call.when_repeated:\n",
        "        self._command = self._command.replace(caller.name.encode(), random_id().encode())\n"
        "        if call.when_repeated:\n",
    ),
    Mutant(
        "a call in doubt is reported as not applied",
        "transport/session.py",
        "        self._in_doubt = self._in_doubt or call.writes\n",
        "",
    ),
    Mutant(
        "an unknown script counts as executed",
        "transport/session.py",
        "                if not isinstance(reply, RedisError):\n                    return reply, safe",
        "                if not isinstance(reply, RedisError) or isinstance(reply, NoScriptError):\n"
        "                    return reply, safe",
    ),
    Mutant(
        "everysec is reported as fsync",
        "transport/durability_check.py",
        'return {b"always": FSYNC, b"everysec": EVERYSEC}',
        'return {b"always": FSYNC, b"everysec": FSYNC}',
        ("tests/values/test_durability.py",),
    ),
    Mutant(
        "the number of confirming replicas is not checked",
        "transport/durability_check.py",
        "return replicated(on_replicas) if safe >= FSYNC and on_replicas else safe",
        "return level if level.replicas and safe >= FSYNC else safe",
        ("tests/values/test_durability.py",),
    ),
    Mutant(
        "WAITAOF is trusted on versions that answer too early",
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
        "self._recheck = self._loop.call_later(RECHECK_AFTER_S, self._add_threads)",
        "pass",
        ("tests/worker/test_edges.py",),
    ),
    Mutant(
        "a prefetched job waits for the whole job before it",
        "worker/executors/base.py",
        "if not self._standby or len(self.running) < self.limit or quiet_s < STUCK_AFTER_S:",
        "if quiet_s >= 0:",
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
        "            self.outcomes.send_again(sent)\n",
        "            pass\n",
        ("tests/worker/test_server_faults.py",),
    ),
    Mutant(
        "the supervisor sends no heartbeats",
        "worker/supervisor/heartbeats.py",
        "                    if queue not in group.beating:\n",
        "                    if queue not in group.beating and group.why:\n",
        ("tests/worker/test_hostile.py::test_jobs_that_hold_the_interpreter_for_many_leases_run_once",),
    ),
    Mutant(
        "the supervisor returns no jobs",
        "worker/supervisor/supervisor.py",
        "        await self._reclaim(group, ending)\n",
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
        "worker/supervisor/heartbeats.py",
        "        if group.why:\n            return  # it is being killed already\n",
        "        if group:\n            return\n",
        ("tests/chaos/test_pauses.py", "tests/worker/test_partial_faults.py"),
    ),
    Mutant(
        "a stop counts a stall for the jobs it returns",
        "worker/runner/runner.py",
        "            for plan in executor.withdraw_standby():\n                self._settle(Released(plan.lease))\n",
        "            for plan in executor.withdraw_standby():\n"
        '                self._settle(Retried(plan.lease, None, ""))\n',
        ("tests/worker/test_stopping.py",),
    ),
    Mutant(
        "a runner does not reconcile with a restored server",
        "worker/runner/upkeep.py",
        "        if consumer.leases.need_reconcile:\n",
        "        if consumer.leases.need_reconcile and consumer.leases.reconciling:\n",
        ("tests/worker/test_rewinds.py",),
    ),
    # -- jobs that cannot be decoded ---------------------------------------------------------------------
    Mutant(
        "a queue keeps any number of broken jobs",
        f"{LUA}/turn.lua",
        "if call('ZCARD', BROKEN) >= tonumber(max_broken) and not call('ZSCORE', BROKEN, id) then",
        "if false then",
        ("simulation", "tests/contract/test_outcomes.py"),
    ),
    Mutant(
        "the oldest broken jobs are dropped",
        f"{LUA}/shared/finish_job.lua",
        "    add_dead_record(BROKEN, id, dead_record)\n",
        "    add_dead_record(BROKEN, id, dead_record)\n"
        "    if call('ZCARD', BROKEN) > 2 then call('ZREMRANGEBYRANK', BROKEN, 0, 0) end\n",
    ),
    Mutant(
        "dropped dead jobs are not counted",
        f"{LUA}/shared/finish_job.lua",
        "  dropped = dropped + excess\n",
        "",
        ("tests/contract/test_outcomes.py",),
    ),
    Mutant(
        "a worker that cannot decode jobs keeps leasing them",
        "worker/runner/runner.py",
        "            outcome = consumer.guard.record_undecodable(outcome)\n",
        "            pass\n",
        ("tests/worker/test_undecodable.py",),
    ),
    Mutant(
        "a program with wrong keys moves a whole queue to broken",
        "queue.py",
        "            if guard.suspended or guard.suspend_if_too_many():\n",
        "            if guard.suspended:\n",
        ("tests/security/test_sealed_queue.py",),
    ),
    Mutant(
        "a Queasy peer takes a set flag for one that is not set",
        "storage/compat/queasy/queasy.lua",
        "    if is_default then\n",
        "    if false then\n",
        ("tests/compat/queasy/test_beside_peers.py::test_what_we_change_while_a_peer_runs_it_survives_its_retry",),
    ),
    Mutant(
        "a newer Queasy is not noticed while all its jobs run",
        "storage/compat/queasy/queasy.lua",
        "  NEWER[2 * i] = NEWER[2 * i - 1] .. ':expiry'\n",
        "  NEWER[2 * i] = NEWER[2 * i - 1]\n",
        ("tests/compat/queasy/test_generations.py::test_a_queue_of_a_newer_release_is_refused_and_not_touched",),
    ),
    Mutant(
        "text behind the array makes an hworker job broken",
        "storage/compat/hworker/hworker.lua",
        "return array and #array < #text and is_job(array) and array or nil",
        "return nil",
        ("tests/compat/hworker/test_texts.py::test_a_text_that_is_a_job_is_given_out_as_it_stands",),
    ),
    Mutant(
        "the mark of an idle hworker peer is taken for a running job",
        "storage/compat/hworker/hworker.lua",
        "local NO_JOB = 'false'",
        "local NO_JOB = 'no such field'",
        ("tests/compat/hworker/test_semantics.py::test_the_mark_of_an_idle_peer_is_no_job",),
    ),
    Mutant(
        "a stdio service with wrong keys moves a whole queue to broken",
        "stdio/native.py",
        "guard.record_undecodable(each) if isinstance(each, Broken) else each for each",
        "each for each",
        ("tests/stdio/test_native.py",),
    ),
    Mutant(
        "jobs beyond a limit that has shrunk count as startable",
        "worker/executors/base.py",
        "return max(0, min(len(self._standby), self.limit - len(self.running)))",
        "return min(len(self._standby), self.limit - len(self.running))",
        ("tests/worker/test_task_starters.py",),
    ),
    # -- jobs that expire ----------------------------------------------------------------------------------
    Mutant(
        "an expired job is leased",
        f"{LUA}/turn.lua",
        "(tonumber(extras.expires) or due + 1) <= due",
        "false",
        ("simulation", "tests/contract/test_expires.py"),
    ),
    Mutant(
        "a job expires although it has started once",
        f"{LUA}/shared/finish_job.lua",
        "  if m.failures + m.stalls > 0 or marked(m, SUSPECT) then clear_job_expiry(m) end\n",
        "",
        ("simulation", "tests/contract/test_expires.py"),
    ),
    Mutant(
        "a job expires before its time",
        f"{LUA}/turn.lua",
        "(tonumber(extras.expires) or due + 1) <= due",
        "(tonumber(extras.expires) or due + 1) <= due + 1000",
    ),
    Mutant(
        "the data of an expired job stays",
        f"{LUA}/turn.lua",
        "  call('HDEL', DATA, unpack(expired))\n",
        "",
        ("simulation", "tests/contract/test_expires.py"),
    ),
    Mutant(
        "whoever waits for a job is not told that it expired",
        f"{LUA}/turn.lua",
        "  for _, id in ipairs(expired) do publish_event(id, 'expired') end\n",
        "",
        ("tests/contract/test_handle.py",),
    ),
    Mutant(
        "a call that drops many expired jobs says that the queue is empty",
        "queue.py",
        "        while found.expired and not (found.leases or found.undecodable):\n",
        "        while False:\n",
        ("tests/contract/test_expires.py",),
    ),
    # -- jobs prefetched by a child -----------------------------------------------------------------------
    Mutant(
        "a job is taken from a child that is about to start it",
        "worker/executors/processes.py",
        '            self._prefetch.put(self._number, job if len(job) <= MAX_JOB_BYTES else b"")\n',
        "",
        ("tests/worker/test_prefetch.py",),
    ),
    Mutant(
        "jobs prefetched by a dead child are lost",
        "worker/executors/processes.py",
        "            self._to_standby(others)\n",
        "",
        ("tests/worker/test_prefetch.py",),
    ),
    Mutant(
        "a job that was not started is blamed for its child's crash",
        "worker/executors/processes.py",
        "not_started = self._number in left or self.stream.unread_by_peer",
        "not_started = self.stream.unread_by_peer",
        ("tests/worker/test_prefetch.py",),
    ),
    Mutant(
        "a job that a child started on its own cannot be stopped",
        "worker/executors/processes.py",
        "            self._to_stop.setdefault(key, why)\n",
        "",
        ("tests/worker/test_prefetch.py",),
    ),
    Mutant(
        "jobs queued behind a long job stay with their child",
        "worker/executors/processes.py",
        "if child.ready and child.heard_at < late",
        "if child.ready and child.heard_at < 0",
        ("tests/worker/test_prefetch.py",),
    ),
    Mutant(
        "a stale answer is taken for the awaited one",
        "worker/executors/processes.py",
        "            if about == self._number:\n",
        "            if about:\n",
        ("tests/worker/test_prefetch.py",),
    ),
    Mutant(
        "a probe uses only its caller's clock",
        f"{LUA}/probe.lua",
        "math.max(ARGV[2], clock)",
        "ARGV[2]",
        ("tests/worker/test_idle.py",),
    ),
    # -- sizes ------------------------------------------------------------------------------------------
    Mutant(
        "a frame carries less than the largest payload",
        "worker/ipc/frames.py",
        "MAX_BODY_BYTES = LARGEST_PAYLOAD + 1024 * 1024",
        "MAX_BODY_BYTES = 64 * 1024 * 1024",
        ("tests/worker/test_large_payloads.py",),
    ),
    Mutant(
        "a payload above every limit is planned",
        "worker/attempt.py",
        "    if len(lease.data) > LARGEST_PAYLOAD:",
        "    if False:",
        ("tests/worker/test_large_payloads.py",),
    ),
    # -- hands and habits -------------------------------------------------------------------------------
    Mutant(
        "a blocking verb in a running event loop is not told",
        "app.py",
        "        if _get_running_loop() is not None:",
        "        if False:",
        ("tests/tasks/test_blocking_in_a_loop.py",),
    ),
    Mutant(
        "a queue with a wrong name is paused without a word",
        "cli/pause.py",
        '    confirm_unused(app, queue, "pause", yes)\n',
        "",
        ("tests/cli/test_cli_commands.py",),
    ),
    Mutant(
        "a worker without processes takes back the jobs that need them",
        "worker/app_facts.py",
        "if with_processes or not is_for_processes(task)",
        "if True",
        ("tests/worker/test_in_process.py",),
    ),
    Mutant(
        "a worker opens a connection for each of its queues at once",
        "worker/settings.py",
        "MAX_CALLS_AT_ONCE = 256",
        "MAX_CALLS_AT_ONCE = 100_000",
        ("tests/worker/test_many_queues.py",),
    ),
)
