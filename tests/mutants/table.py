"""The mutants: faults that others made, or that this design rules out, each as a small change of the source."""

from dataclasses import dataclass
from pathlib import Path

from tests.mutants.places import Edit, Sources, edited, read

PACKAGE = Path(__file__).parents[2] / "uploader"

MACHINE = "tests/stateful/test_accounting_machine.py"

_ADDING = "tests/integration/test_adding_files.py"
_APPENDS = "tests/integration/test_appends.py"
_THESE_BYTES = "tests/integration/test_these_bytes.py"
_CONCATENATION = "tests/integration/test_concatenation.py"
_CROWDS = "tests/integration/test_crowds.py"
_TAILS = "tests/integration/test_tails.py"
_ACCOUNTING = "tests/integration/test_accounting.py"
_CLEANUP = "tests/integration/test_cleanup.py"
_JOBS = "tests/integration/test_jobs.py"
_KEPT_FILES = "tests/integration/test_kept_files.py"
_LIMITS = "tests/integration/test_limits.py"
_PROOFS = "tests/integration/test_proof_of_possession.py"
_UNCERTAIN = "tests/integration/test_uncertain_commits.py"
_UNKNOWN_MD5 = "tests/integration/test_unknown_md5.py"
_WHOLE = "tests/integration/test_whole_files.py"
_CUT_OFF = "tests/integration/test_power_cuts.py"


@dataclass(frozen=True)
class Mutant:
    """A fault, and the tests that have to see it."""

    name: str
    edits: tuple[Edit, ...]
    tests: str = MACHINE


def _mutant(name: str, *edits: tuple[str, str, str], tests: str = MACHINE) -> Mutant:
    return Mutant(name, tuple(Edit(*edit) for edit in edits), tests)


MUTANTS = (
    _mutant(
        "classic pop-then-add flush",
        (
            "claim_due.lua",
            "local at = #reply",
            """local whole, flushed, chunks, count, minted = read_figures(fields[n][2])
delay_remove(KEYS[1], KEYS[2], ARGV[4] .. id, id)
redis.call('HSET', ARGV[4] .. id, 'figures', figures_text(whole, whole, chunks, count, minted))
local at = #reply""",
        ),
        ("claim_due.lua", "received or 0", "received - flushed"),
        (
            "flush",
            "if (item.generation, item.received) <= (flushed_generation, flushed_bytes): continue",
            "item = Received(upload_id, item.generation, flushed_bytes + item.received)",
        ),
    ),
    _mutant(
        "compensation by Redis's figure",
        ("_commit_close", "upload.id, reason, now, told", "upload.id, reason, now, received, told"),
        (
            "_commit_close",
            "await self.database.transact",
            "received = (await self.pending.read(upload.id)).received\nawait self.database.transact",
        ),
        ("close_upload", "now: datetime", "now: datetime, received: int"),
        (
            "close_upload",
            "await rows.settle_user(connection, upload, finished=0)",
            "from dataclasses import replace\n"
            "await rows.settle_user(connection, replace(upload, flushed_bytes=received), finished=0)",
        ),
    ),
    _mutant(
        "a missing fence: a late flush counts",
        (
            "flush",
            "(item.generation, item.received) <= (flushed_generation, flushed_bytes)",
            "(item.generation, item.received) == (flushed_generation, flushed_bytes)",
        ),
    ),
    _mutant(
        "a missing fence: the generation is not compared",
        (
            "flush",
            "(item.generation, item.received) <= (flushed_generation, flushed_bytes)",
            "item.received <= flushed_bytes",
        ),
    ),
    _mutant(
        "a missing fence: the ack of another generation counts",
        ("ack_flush.lua", "generation == tonumber(ARGV[i + 1])", "true"),
    ),
    _mutant("a flush that ignores the state of the row", ("lock_batch", ", table.state == State.OPEN.value", "")),
    _mutant("ack without compare", ("ack_flush.lua", "received == flushed", "true")),
    _mutant("ack that lowers flushed", ("ack_flush.lua", "math.max(flushed, value)", "value")),
    _mutant(
        "ack before the commit",
        (
            "flush_due",
            'crash_point("flush.after_claim")',
            'await self.pending.ack_flush(0, claims)\ncrash_point("flush.after_claim")',
        ),
    ),
    _mutant("record without the bit", ("record_chunk.lua", "redis.call('SETBIT', chunks, number, 1) == 1", "false")),
    _mutant(
        "the bit tested before era and state",
        ("record_chunk.lua", "redis.call('SETBIT', chunks, number, 1) == 1", "false"),
        (
            "record_chunk.lua",
            "if ENDED[state] then",
            """if redis.call('SETBIT', chunks, number, 1) == 1 then
  return answer('duplicate', received, chunk_total, chunk_count, state)
end
if ENDED[state] then""",
        ),
    ),
    _mutant("the era is not looked at", ("record_chunk.lua", "era ~= current_era(KEYS[3], ARGV[2])", "not era")),
    _mutant(
        "hydrate without the lock",
        (
            "_hydrate",
            "async with self.storage.closing(upload) as closer: return await self._hydrate_held(upload, closer)",
            "async with self.storage.closing(upload) as closer:\n"
            "    pass\n"
            "return await self._hydrate_held(upload, closer)",
        ),
    ),
    _mutant(
        "hydrate that replaces within an era",
        ("hydrate.lua", "facts[1] == era and known_generation == generation", "false"),
    ),
    _mutant(
        "hydrate that puts off the flush",
        ("hydrate.lua", "read_timer(redis.call('HGET', up, 'timer')) and delay_waits(due, minutes, up, id)", "false"),
    ),
    _mutant(
        "settle apart from the last record",
        ("record_chunk.lua", "chunk_total == chunk_count", "false"),
        (
            "hold_and_record",
            "if result.outcome is not Outcome.REHYDRATE and is_known:",
            "if result.chunks == result.chunk_count and not result.settled:\n"
            "    result = await self.closers.hydrate(upload)  # which settles\n"
            "if result.outcome is not Outcome.REHYDRATE:",
        ),
    ),
    _mutant(
        "an index entry forgotten when a bucket fills",
        ("_delay.lua", "if before ~= minute then redis.call('ZADD', minutes, minute, minute) end", ""),
    ),
    _mutant(
        "an index entry forgotten when a bucket empties",
        ("_delay.lua", "redis.call('ZREM', minutes, minute)", ""),
    ),
    _mutant(
        "a claim takes the task out",
        ("_delay.lua", "redis.call('HSET', task, 'timer', leased)", "redis.call('HSET', task, 'timer', '')"),
        ("_delay.lua", "if next_ms then", "if next_ms and next_ms ~= until_ms then"),
        ("_delay.lua", "next_minute ~= minute", "next_ms == until_ms or next_minute ~= minute"),
    ),
    _mutant(
        "what becomes due earlier stays where it waits", ("_delay.lua", "if at and at <= due_ms then", "if at then")
    ),
    _mutant(
        "a claim that goes by where a task waits",
        ("_delay.lua", "is_here and due_ms <= now_ms", "is_here"),
        tests=_ACCOUNTING,
    ),
    _mutant(
        "a claim that only scheduled anew is the last",
        ("UploadQueue.claim", "claims or looked < limit", "True"),
        tests=_ACCOUNTING,
    ),
    _mutant("an older format that is believed", ("_era.lua", ".. ':' .. FORMAT", ""), tests=_ACCOUNTING),
    _mutant(
        "a steady uploader is never accounted for",
        (
            "_upload.lua",
            "math.min(now + quiet_ms, since + max_delay_ms)",
            "now + quiet_ms",
        ),
    ),
    _mutant(
        "a claim that never comes back is pushed back",
        ("_upload.lua", "math.min(due_ms, lease_until)", "due_ms"),
        tests=_ACCOUNTING,
    ),
    _mutant(
        "expiry goes on after a jump of the clock",
        ("Pause.active", "or abs(wall_passed - steady_passed) > _JUMP_SECONDS", ""),
        tests="tests/unit/test_runner.py",
    ),
    _mutant("an end that is not announced", ("Closers.announce", "await self.pending.lease(upload.id)", "pass")),
    _mutant(
        "the map before the bytes",
        (
            "_write_missing",
            "self._write_data(files.data, number * upload.chunk_size + head.length, pieces, head.checksum)",
            "crc32(b''.join(body.pieces()))",
        ),
        (
            "_write_missing",
            "self._write_record(files.map, map_record(checksum), record)",
            "self._write_record(files.map, map_record(checksum), record)\n"
            "self._write_data(files.data, number * upload.chunk_size, body.pieces(), 0)",
        ),
    ),
    _mutant("open files are believed without a look", ("try_hold", "files.check()", "pass"), tests=_KEPT_FILES),
    _mutant(
        "a lock that stays with the open file",
        ("let_go", "unlock_all(files.map)", "pass"),
        tests=_KEPT_FILES,
    ),
    _mutant(
        "a chunk on the map is not recorded again",
        (
            "hold_and_record",
            "result = await self.pending.record_chunk(upload.id, number, length)",
            "from types import SimpleNamespace\n"
            "if held.written:\n"
            "    result = await self.pending.record_chunk(upload.id, number, length)\n"
            "else:\n"
            "    known = await self.pending.read(upload.id)\n"
            "    facts = {'received': known.received, 'chunks': known.chunks, 'chunk_count': 0, 'settled': False}\n"
            "    result = SimpleNamespace(outcome=Outcome.DUPLICATE, **facts)",
        ),
    ),
    _mutant(
        "a withdrawal without a generation",
        ("withdraw", "upload.generation + 1", "upload.generation"),
    ),
    _mutant(
        "a withdrawal that takes from the map first",
        (
            "_withdraw_held",
            "await closer.withdraw(numbers, generation=generation, verified=verified)\n"
            'crash_point("withdraw.after_map")',
            "",
        ),
        (
            "_withdraw_held",
            "generation = await self.database.transact",
            "await closer.withdraw(numbers, generation=upload.generation + 1, verified=verified)\n"
            'crash_point("withdraw.after_map")\n'
            "generation = await self.database.transact",
        ),
    ),
    _mutant(
        "an interrupted withdrawal that nobody ends",
        ("flush", "item.generation >= flushed_generation", "True"),
    ),
    # Proof of possession and limits
    _mutant("a challenge that serves twice", ("Challenges.take", "getdel", "get"), tests=_PROOFS),
    _mutant(
        "a challenge that serves everybody",
        (
            "challenge_keys",
            'f"challenge:{tag}:{user_id}/{challenge_id}"',
            'f"challenge:{tag}:{challenge_id}"',
        ),
        tests=_PROOFS,
    ),
    _mutant(
        "a challenge that serves for ever",
        ("_is_proven", "challenge.expires_at <= self.clock.now()", "False"),
        tests=_PROOFS,
    ),
    _mutant("a challenge that serves for any MD5", ("Instant.prove", "challenge.md5 != md5 or", ""), tests=_PROOFS),
    _mutant(
        "a proof that closes the upload of a twin",
        ("_finish_proven", "replaced is not None and not replaced.may_be(challenge.sha256, challenge.size)", "False"),
        tests=_PROOFS,
    ),
    _mutant(
        "failures that cost nothing",
        ("issue_challenge.lua", "or unproven >= tonumber(ARGV[8])", ""),
        tests=_PROOFS,
    ),
    _mutant(
        "good proofs that cost as much as failures",
        ("Instant.prove", "await self.challenges.count_as_proven(challenge)", "pass"),
        tests=_PROOFS,
    ),
    _mutant(
        "probes that cost nothing",
        ("issue_challenge.lua", "or probes > tonumber(ARGV[7])", ""),
        tests=_PROOFS,
    ),
    _mutant(
        "headers that are counted only when they are whole",
        ("_count_unparsed", "self._unparsed_bytes > MAX_HEAD_BYTES", "False"),
        tests=_LIMITS,
    ),
    _mutant(
        "blank lines that keep a connection open",
        ("LimitedProtocol.data_received", "self._start_head_timer()", "pass"),
        tests=_LIMITS,
    ),
    _mutant(
        "answers that may stand still",
        ("_check_stall", "self.transport.abort()", "pass"),
        tests=_LIMITS,
    ),
    _mutant(
        "connections that wait and keep others out",
        ("_dismiss_one", "if found is None:", "if True:"),
        tests=_CROWDS,
    ),
    _mutant(
        "a probe that is refused with the others",
        ("Connections.probe", "return connection in self._probing", "return False"),
        tests=_CROWDS,
    ),
    _mutant(
        "a reserve without end",
        ("_retire", "oldest.cut()", "pass"),
        tests=_CROWDS,
    ),
    _mutant(
        "addresses of a network that count apart",
        ("party_of", "if isinstance(address, IPv6Address):", "if False:"),
        tests=_CROWDS,
    ),
    _mutant(
        "a guesser who locks everybody out",
        ("Accounts.knows", "return self._believed.remembers(_hash(token))", "return False"),
        tests=_CROWDS,
    ),
    _mutant(
        "an upload that is tidied by what was read before its locks",
        ("_tidy", "self._tidy_held(row, closer)", "self.clear(row, row.state, closer)"),
        tests=_UNCERTAIN,
    ),
    _mutant(
        "a content that goes while its file may come back",
        ("Files._collect", "await self.database.sync()", "pass"),
        tests=_UNCERTAIN,
    ),
    _mutant(
        "a flush that is acknowledged for a commit under way",
        ("Flushing._write", "await self.database.sync()", "pass"),
        tests=_UNCERTAIN,
    ),
    _mutant(
        "a directory that goes while its row may come",
        ("is_inserted", ".with_for_update(nowait=True)", ""),
        tests=_UNCERTAIN,
    ),
    _mutant("orphans as old as their bytes", ("look", "st_ctime", "st_mtime"), tests=_CLEANUP),
    _mutant(
        "a lease that no merge renews",
        ("Merging._renew", "await self.pending.lease(upload_id)", "pass"),
        tests=_JOBS,
    ),
    _mutant(
        "names and quota that are read without the lock",
        ("add_files", "files[0].user_id, lock=True", "files[0].user_id"),
        tests=_ADDING,
    ),
    _mutant(
        "a name that is decided on before the lock",
        ("Changes._refusal", "_refuse_taken(file, of_name, self.if_exists)", "pass"),
        tests=_ADDING,
    ),
    _mutant(
        "a replacement of what is not locked",
        ("add_files", "{file.sha256 for file in changes.removed} <= locked", "True"),
        tests=_ADDING,
    ),
    _mutant(
        "a refused member that keeps its ref",
        ("Changes.decide", "self.dropped[file.sha256] += 1", "pass"),
        tests=_ADDING,
    ),
    _mutant(
        "an open upload that its content leaves open",
        ("add_file", "if replaced is None:", "if True:"),
        tests=_WHOLE,
    ),
    _mutant(
        "one path twice in a group",
        ("_Group.takes", "if new.name in self.names: return False", "pass"),
        tests=_WHOLE,
    ),
    _mutant("a batch without its sync", ("LocalBlobs._write_arrivals", "blobs.sync_all()", "pass"), tests=_CUT_OFF),
    _mutant(
        "an error of the disk that another group is told of",
        ("LocalBlobs._write_arrivals", "blobs.sync_all()", "self._root.sync_all()"),
        tests=_WHOLE,
    ),
    _mutant(
        "bytes that are believed though their sync failed",
        (
            "_write_blob",
            "write_all(descriptor, body.pieces())",
            "if is_new: write_all(descriptor, body.pieces())",
        ),
        tests=_WHOLE,
    ),
    _mutant(
        "a blob that is not looked at once more",
        ("_still_placed", "self._root.has(blob_path(arrival.sha256_of_bytes), place, unchanged=True)", "True"),
        tests=_WHOLE,
    ),
    _mutant(
        "a blob that is known by its number alone",
        ("Directory.has", "found.st_ctime_ns != opened.st_ctime_ns", "False"),
        tests=_WHOLE,
    ),
    _mutant(
        "an offset from Redis",
        (
            "Appends._take_or_complete",
            "_check_offset(stored, offset)",
            "known = (await self.pending.read(upload.id)).received\n"
            "if known != offset: raise errors.OffsetMismatch(offset=known)",
        ),
        tests=_APPENDS,
    ),
    _mutant(
        "a late append of an old request",
        ("AppendedStream._receive", "self.appender.is_claimed", "False"),
        tests=_APPENDS,
    ),
    _mutant(
        "an append that takes the chunk of another for its own",
        ("Appends._acknowledge", "if not stored.written:", "if False:"),
        tests=_THESE_BYTES,
    ),
    _mutant(
        "a merge that waits for a client which is gone",
        ("Receiving.hold_and_record", "if result.settled:", "if False:"),
        tests=_THESE_BYTES,
    ),
    _mutant("an append wherever it says", ("_check_offset", "stored.leading_bytes != offset", "False"), tests=_APPENDS),
    _mutant("a reservation that grew and is not given back", ("_reserve", "more < 0", "False"), tests=_APPENDS),
    _mutant(
        "bytes that are stored before they are reserved",
        (
            "AppendedStream._store",
            "self.upload = await self.appends.deferred_length.grow(self.upload, end)\n"
            "await self.appends.store(self.upload, number, start, body)",
            "await self.appends.store(self.upload, number, start, body)\n"
            "self.upload = await self.appends.deferred_length.grow(self.upload, end)",
        ),
        tests=_APPENDS,
    ),
    _mutant(
        "a length that Redis never hears of after a crash",
        ("flush", "item.received != length", "True"),
        tests=_APPENDS,
    ),
    _mutant("bytes that go with their connection", ("_fill_part", "return ending", "raise"), tests=_APPENDS),
    _mutant(
        "a tail record before its bytes",
        (
            "_write_missing",
            "checksum = self._write_data(files.data, number * upload.chunk_size + head.length, pieces, head.checksum)",
            "if not is_whole:\n"
            "    checksum = crc32(b''.join(body.pieces()), head.checksum)\n"
            "    early = TailRecord(number, start + body.length, checksum)\n"
            "    self._write_tail(files.map, tail_record(early), tail_field(header))\n"
            "checksum = self._write_data"
            "(files.data, number * upload.chunk_size + head.length, pieces, head.checksum)",
        ),
        tests=_TAILS,
    ),
    _mutant("a tail that is not synced", ("_write_tail", "self._sync_data(map_descriptor)", "pass"), tests=_TAILS),
    _mutant(
        "a tail that comes back when its chunk goes",
        ("_take_back_tail", "all(number > tail.number for number in numbers)", "True"),
        tests=_TAILS,
    ),
    _mutant(
        "a chunk that only has the checksum of the tail",
        (
            "holds",
            "read(descriptor, len(part), offset + start) != part",
            "(crc := __import__('zlib').crc32)(read(descriptor, len(part), offset + start)) != crc(part)",
        ),
        tests=_TAILS,
    ),
    _mutant("a tail counted twice when its chunk is full", ("record_chunk.lua", "received = received - tail", "")),
    _mutant(
        "a tail beside what Redis does not know",
        (
            "record_tail.lua",
            "math.max(redis.call('BITPOS', chunks, 0), 0) ~= number or tail_number and tail_number ~= number",
            "false",
        ),
        tests=_ACCOUNTING,
    ),
    _mutant(
        "an instant upload from files whose MD5 nobody knows",
        (
            "_newest_file",
            "*_are_given(_FILES, *facts)",
            "*((_FILES[fact] == bindparam(fact)) | _FILES[fact].is_(None) for fact in facts)",
        ),
        tests=_UNKNOWN_MD5,
    ),
    _mutant(
        "a blob that knows its MD5 alone",
        ("fill_md5s", "await _fill(connection, models.file, md5s)", "pass"),
        tests=_UNKNOWN_MD5,
    ),
    _mutant(
        "a file that does not know what its blob knows",
        ("merge", "replace(file, md5=await queries.md5_of(connection, sha256))", "file"),
        tests=_UNKNOWN_MD5,
    ),
    _mutant(
        "digests without the MD5 that was told",
        ("LockedDigests.load", "saved.md5 or not needs_md5", "True"),
        ("PrefixHashes.restore", "needs_md5 and not md5", "False"),
        tests=_UNKNOWN_MD5,
    ),
    _mutant(
        "a part counted in the whole",
        ("join_concatenation", "held = sum(part.size for part in parts.values())", "held = 0"),
        tests=_CONCATENATION,
    ),
    _mutant(
        "a part that is merged",
        ("record_chunk.lua", "chunk_total == chunk_count and not facts[6]", "chunk_total == chunk_count"),
        tests=_CONCATENATION,
    ),
    _mutant(
        "a whole of bytes that went bad in a part",
        ("_read_part", "!= file.checksums[number]", "is None"),
        tests=_CONCATENATION,
    ),
)


def mutated(sources: Sources, mutant: Mutant) -> Sources:
    """Raises ValueError if the source is not as the mutant knows it."""
    for edit in mutant.edits:
        sources = edited(sources, edit)
    return sources


def apply(mutant: Mutant, package: Path) -> None:
    """Change a copy of the package. Raises ValueError as `mutated`."""
    sources = read(package)
    for path, source in mutated(sources, mutant).items():
        if source != sources[path]:
            path.write_text(source)
