"""The mutants: faults that others made, or that this design rules out, each as a small change of the source."""

from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "uploader"

MACHINE = "tests/stateful/test_accounting_machine.py"

_ACCOUNTING = "tests/integration/test_accounting.py"
_DELAY = "accounting/scripts/_delay.lua"
_RECORD = "accounting/scripts/record_chunk.lua"
_ACK = "accounting/scripts/ack_flush.lua"
_CLAIM = "accounting/scripts/claim_due.lua"
_HYDRATE = "accounting/scripts/hydrate.lua"
_TRANSACTIONS = "database/transactions/uploads.py"
_CLOSERS = "service/uploads/closers.py"
_CHUNKS = "service/uploads/receiving.py"
_FLUSHING = "service/upkeep/flushing.py"
_CHUNK_FILES = "storage/local/chunkfiles.py"
_INSTANT = "service/uploads/instant.py"
_CHALLENGES = "accounting/challenges.py"
_PROOFS = "tests/integration/test_proof_of_possession.py"
_PROTOCOL = "http/server/http11.py"
_KEPT_FILES = "tests/integration/test_kept_files.py"
_LIMITS = "tests/integration/test_limits.py"
_UNCERTAIN = "tests/integration/test_uncertain_commits.py"


@dataclass(frozen=True)
class Edit:
    """`old` occurs exactly once in a file of the package, and becomes `new`."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """A fault, and the tests that have to see it."""

    name: str
    edits: tuple[Edit, ...]
    tests: str = MACHINE


def _mutant(name: str, *edits: tuple[str, str, str], tests: str = MACHINE) -> Mutant:
    return Mutant(name, tuple(Edit(*edit) for edit in edits), tests)


_SETTLING = """
if chunk_total == chunk_count then
  delay_remove(KEYS[4], KEYS[5], up, id)
  redis.call('HSET', up, 'state', 'merging')
  redis.call('HDEL', up, 'pending_since', 'lease_until')
  delay_schedule(KEYS[6], KEYS[7], up, id, now + lease, now)
  return {'recorded', received, chunk_total, chunk_count, 'merging'}
end
"""
_BIT = """if redis.call('SETBIT', chunks, number, 1) == 1 then
  return {'duplicate', tonumber(received), chunk_total, chunk_count, state}
end
"""
_CLOSED = "if state and state ~= 'open' and state ~= 'merging' then return {state, 0, 0, 0, state} end\nif era ~="

MUTANTS = (
    _mutant(
        "classic pop-then-add flush",
        (
            _CLAIM,
            "  claims[#claims + 1] = {id, tonumber(facts[1] or 0), tonumber(facts[2] or 0), facts[3] or '', now + lease,"
            " late}\n",
            """  local up = prefix .. id
  local flushed = tonumber(redis.call('HGET', up, 'flushed') or 0)
  delay_remove(KEYS[1], KEYS[2], up, id)
  redis.call('HSET', up, 'flushed', facts[2] or 0)
  redis.call('HDEL', up, 'lease_until')
  local received = tonumber(facts[2] or 0) - flushed
  claims[#claims + 1] = {id, tonumber(facts[1] or 0), received, facts[3] or '', now + lease, late}
""",
        ),
        (
            _TRANSACTIONS,
            "        if (item.generation, item.received) <= (flushed_generation, flushed_bytes):\n            continue\n",
            "        item = Received(upload_id, item.generation, flushed_bytes + item.received)\n",
        ),
    ),
    _mutant(
        "compensation by Redis's figure",
        (
            _CLOSERS,
            "            lambda connection: transactions.close_upload(connection, upload.id, reason, self._clock.now())\n",
            "            lambda connection: transactions.close_upload(\n"
            "                connection, upload.id, reason, self._clock.now(), received\n"
            "            )\n",
        ),
        (
            _CLOSERS,
            "        await self.announce(upload)\n        await self._database.transact(\n",
            "        await self.announce(upload)\n"
            "        received = (await self._pending.read(upload.id)).received\n"
            "        await self._database.transact(\n",
        ),
        (
            _TRANSACTIONS,
            "upload_id: str, reason: Reason, now: datetime) -> Upload:",
            "upload_id: str, reason: Reason, now: datetime, received: int) -> Upload:",
        ),
        (
            _TRANSACTIONS,
            "    await _settle_user(connection, upload, finished=0)\n    return upload\n",
            "    from dataclasses import replace\n"
            "    await _settle_user(connection, replace(upload, flushed_bytes=received), finished=0)\n    return upload\n",
        ),
    ),
    _mutant(
        "a missing fence: a late flush counts",
        (
            _TRANSACTIONS,
            "        if (item.generation, item.received) <= (flushed_generation, flushed_bytes):",
            "        if (item.generation, item.received) == (flushed_generation, flushed_bytes):",
        ),
    ),
    _mutant(
        "a missing fence: the generation is not compared",
        (
            _TRANSACTIONS,
            "        if (item.generation, item.received) <= (flushed_generation, flushed_bytes):",
            "        if item.received <= flushed_bytes:",
        ),
    ),
    _mutant(
        "a missing fence: the ack of another generation counts",
        (_ACK, "  if facts[1] == generation and", "  if facts[1] and"),
    ),
    _mutant(
        "a flush that ignores the state of the row",
        (
            _TRANSACTIONS,
            "        .where(table.id.in_(sorted(newest)), table.state == State.OPEN.value)",
            "        .where(table.id.in_(sorted(newest)))",
        ),
    ),
    _mutant(
        "ack without compare",
        (_ACK, "      if tonumber(facts[2]) == flushed then\n", "      if true then\n"),
    ),
    _mutant(
        "ack that lowers flushed",
        (_ACK, "math.max(tonumber(facts[3]), value)", "value"),
    ),
    _mutant(
        "ack before the commit",
        (
            _FLUSHING,
            '        crash_point("flush.after_claim")\n',
            '        await self._pending.ack_flush(0, claims)\n        crash_point("flush.after_claim")\n',
        ),
    ),
    _mutant("record without the bit", (_RECORD, _BIT, "")),
    _mutant("the bit tested before era and state", (_RECORD, _BIT, ""), (_RECORD, _CLOSED, _BIT + _CLOSED)),
    _mutant(
        "the era is not looked at",
        (_RECORD, "if era ~= current_era(KEYS[3], ARGV[2]) then", "if not era then"),
    ),
    _mutant(
        "hydrate without the lock",
        (
            _CLOSERS,
            """        async with self._storage.closing(upload) as closer:
            return await self._hydrate_held(upload, closer)
""",
            """        from uploader.storage.local.store import LocalCloser
        return await self._hydrate_held(upload, LocalCloser(self._storage, upload))
""",
        ),
    ),
    _mutant(
        "hydrate that replaces within an era",
        (_HYDRATE, "if facts[1] == era and facts[2] == generation then\n", "if false then\n"),
    ),
    _mutant(
        "hydrate that puts off the flush",
        (_HYDRATE, "  if not delay_waits(KEYS[4], KEYS[5], up, id) then\n", "  if true then\n"),
    ),
    _mutant(
        "settle apart from the last record",
        (_RECORD, _SETTLING, ""),
        (
            _CHUNKS,
            "            if figures.outcome is not Outcome.REHYDRATE:\n                return Stored(",
            "            if figures.chunks == figures.chunk_count and not figures.settled:\n"
            "                figures = await self._closers.hydrate(upload)  # which settles\n"
            "            if figures.outcome is not Outcome.REHYDRATE:\n                return Stored(",
        ),
    ),
    _mutant(
        "an index entry forgotten when a bucket fills",
        (_DELAY, "  redis.call('ZADD', minutes, minute, minute)\n", ""),
    ),
    _mutant(
        "an index entry forgotten when a bucket empties",
        (_DELAY, "  if redis.call('EXISTS', bucket) == 0 then redis.call('ZREM', minutes, minute) end\n", ""),
    ),
    _mutant(
        "a claim takes the task out",
        (
            _DELAY,
            "        redis.call('HSET', task, 'due_minute', next_minute, ...)\n",
            "        redis.call('HDEL', task, 'due_minute')\n        redis.call('HSET', task, ...)\n",
        ),
        (_DELAY, "        scores[#scores + 1], scores[#scores + 2] = until_ms, id\n", ""),
        (_DELAY, "      if not waits or minute ~= next_minute then leaving", "      if true then leaving"),
    ),
    _mutant(
        "a steady uploader is never accounted for",
        (
            _RECORD,
            "math.min(now + tonumber(ARGV[6]), tonumber(pending_since) + tonumber(ARGV[7]))",
            "now + tonumber(ARGV[6])",
        ),
    ),
    _mutant(
        "a claim that never comes back is pushed back",
        (_RECORD, "if lease_until then due = math.min(due, tonumber(lease_until)) end\n", ""),
        tests=_ACCOUNTING,
    ),
    _mutant(
        "expiry goes on after a jump of the clock",
        (
            "jobs/pause.py",
            "if steady_passed > self._outage_seconds or abs(wall_passed - steady_passed) > _JUMP_SECONDS:",
            "if steady_passed > self._outage_seconds:",
        ),
        tests="tests/unit/test_pause.py",
    ),
    _mutant(
        "an end that is not announced",
        (_CLOSERS, "            await self._pending.lease(upload.id)\n", ""),
    ),
    _mutant(
        "the map before the bytes",
        (
            _CHUNK_FILES,
            "        checksum = self._write_data(files.data, number * upload.chunk_size, body)\n"
            "        self._write_record(files.map, formats.map_record(checksum), record)\n",
            "        checksum = crc32(b''.join(body.pieces()))\n"
            "        self._write_record(files.map, formats.map_record(checksum), record)\n"
            "        self._write_data(files.data, number * upload.chunk_size, body)\n",
        ),
    ),
    _mutant(
        "open files are believed without a look",
        (_CHUNK_FILES, "                files.check()\n", ""),
        tests=_KEPT_FILES,
    ),
    _mutant(
        "a lock that stays with the open file",
        (_CHUNK_FILES, "            unlock_all(self._files.map)\n", "            pass\n"),
        tests=_KEPT_FILES,
    ),
    _mutant(
        "a chunk on the map is not recorded again",
        (
            _CHUNKS,
            "                figures = await self._pending.record_chunk(upload.id, number, length)\n",
            "                from uploader.accounting.pending import RecordResult\n"
            "                if held.written:\n"
            "                    figures = await self._pending.record_chunk(upload.id, number, length)\n"
            "                else:\n"
            "                    known = await self._pending.read(upload.id)\n"
            "                    figures = RecordResult(Outcome.DUPLICATE, known.received, known.chunks, 0, False)\n",
        ),
    ),
    _mutant(
        "a withdrawal without a generation",
        (_TRANSACTIONS, "    generation = upload.generation + 1\n", "    generation = upload.generation\n"),
    ),
    _mutant(
        "a withdrawal that takes from the map first",
        (
            _CLOSERS,
            "        # The generation first:",
            "        await closer.withdraw(numbers, verified=verified)\n"
            '        crash_point("withdraw.after_map")\n        # The generation first:',
        ),
        (
            _CLOSERS,
            "        await closer.withdraw(numbers, verified=verified)\n"
            '        crash_point("withdraw.after_map")\n        if',
            "        if",
        ),
    ),
    _mutant(
        "an interrupted withdrawal that nobody ends",
        (_TRANSACTIONS, "        if item.generation >= flushed_generation:\n", "        if True:\n"),
    ),
    # Proof of possession and limits
    _mutant("a challenge that serves twice", (_CHALLENGES, ".getdel(", ".get("), tests=_PROOFS),
    _mutant(
        "a challenge that serves everybody",
        ("accounting/keys.py", "{user_id}/{challenge_id}", "{challenge_id}"),
        tests=_PROOFS,
    ),
    _mutant(
        "a challenge that serves for ever",
        (_INSTANT, "if challenge.expires_at <= self._clock.now():", "if challenge.size < 0:"),
        tests=_PROOFS,
    ),
    _mutant("a challenge that serves for any MD5", (_INSTANT, "challenge.md5 != md5 or ", ""), tests=_PROOFS),
    _mutant(
        "a proof that closes the upload of a twin",
        (_INSTANT, "replaced is not None and not _is_of(replaced, challenge)", "False"),
        tests=_PROOFS,
    ),
    _mutant(
        "failures that cost nothing",
        ("accounting/scripts/issue_challenge.lua", " or unproven >= tonumber(ARGV[8])", ""),
        tests=_PROOFS,
    ),
    _mutant(
        "good proofs that cost as much as failures",
        (_INSTANT, "        await self._challenges.count_as_proven(challenge)\n", ""),
        tests=_PROOFS,
    ),
    _mutant(
        "probes that cost nothing",
        ("accounting/scripts/issue_challenge.lua", " or probes > tonumber(ARGV[7])", ""),
        tests=_PROOFS,
    ),
    _mutant(
        "headers that are counted only when they are whole",
        (_PROTOCOL, "if self._unparsed_bytes > MAX_HEAD_BYTES:", "if self._unparsed_bytes < 0:"),
        tests=_LIMITS,
    ),
    _mutant(
        "blank lines that keep a connection open",
        (
            _PROTOCOL,
            "        if self._in_head:\n            self._start_head_timer()\n        self._unset",
            "        self._unset",
        ),
        tests=_LIMITS,
    ),
    _mutant(
        "answers that may stand still",
        (_PROTOCOL, "            self.transport.abort()\n\n    def untaken", "            return\n\n    def untaken"),
        tests=_LIMITS,
    ),
    _mutant(
        "an upload that is tidied by what was read before its locks",
        (_CLOSERS, "return await self._tidy_held(row, closer)", "return await self.clear(row, row.state, closer)"),
        tests=_UNCERTAIN,
    ),
    _mutant(
        "a content that goes while its file may come back",
        ("service/files.py", "            await self._database.sync()\n", ""),
        tests=_UNCERTAIN,
    ),
    _mutant(
        "a flush that is acknowledged for a commit under way",
        (_FLUSHING, "            await self._database.sync()\n", "            pass\n"),
        tests=_UNCERTAIN,
    ),
    _mutant(
        "a directory that goes while its row may come",
        ("database/queries.py", ".with_for_update(nowait=True)", ""),
        tests=_UNCERTAIN,
    ),
)


def source(edit: Edit) -> str:
    """The file that is changed, as it is."""
    return (PACKAGE / edit.path).read_text()


def apply(mutant: Mutant, package: Path) -> None:
    """Change a copy of the package. Raises ValueError if the source is not as the mutant knows it."""
    for edit in mutant.edits:
        content = (package / edit.path).read_text()
        if content.count(edit.old) != 1:
            raise ValueError(f"{mutant.name}: {edit.path} has {content.count(edit.old)} times {edit.old!r}")
        (package / edit.path).write_text(content.replace(edit.old, edit.new))
