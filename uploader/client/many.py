"""Uploads of many files: unchanged files are only reported, small files go in batches, two at a time, other files one
by one, several at a time.

Knows neither how a batch is made (`batch.py`) nor how a single file is sent (`upload.py`).
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from uploader.client import errors, plan
from uploader.client.batch import Member, bytes_for, first_bytes, length_of, next_batch, pieces_of, read_batch
from uploader.client.files import LocalFile, ManyFiles, Outcome, There, named_apart, read_target
from uploader.client.model import File, How, IfExists, Line
from uploader.client.pace import BODY_LIMITED, error_of
from uploader.client.source import open_source
from uploader.client.transfer import Meter, all_or_none
from uploader.client.upload import Destination, Uploading

# One is read, or answered, while the other is sent.
_BATCHES = 2
# After this many unchanged files, other tasks get a turn.
_TOLD_AT_ONCE = 100

Refused = tuple[Member, errors.ClientError]


@dataclass
class ManyUploads(ManyFiles):
    if_exists: IfExists
    # Compare a file by digest, not by time of modification.
    checksum: bool

    def __post_init__(self) -> None:
        self._there = There((), self.if_exists)
        self._small_bytes = 0
        self._batch_bytes = first_bytes(self.shared.most_bytes_per_second)
        # Files that wait for a batch; for a request of their own; and for one because no batch could take them.
        self._small: deque[LocalFile] = deque()
        self._others: deque[LocalFile] = deque()
        self._left_over: deque[LocalFile] = deque()
        # Uploads that may be open on the server.
        self._unfinished: set[Uploading] = set()

    async def run(self, files: Sequence[LocalFile]) -> list[Outcome]:
        """Upload files. Return the outcomes of all files that were begun."""
        self.meter.tell()
        named, refused = named_apart(files, self.if_exists)
        for local, error in refused:
            self.end(Outcome(local, error=error))
        try:
            at_once_bytes = await self.shared.at_once_bytes(self.api)
            if not at_once_bytes and self.if_exists != "keep":
                raise errors.ServerTooOld  # rather than ignore `if_exists`
            self._small_bytes = min(plan.SMALL_BYTES, at_once_bytes)
            self._there = await read_target(self.api, [local.name for local in named], self.if_exists)
        except errors.ClientError as error:
            if named:
                self.watcher.begun(named[0])
                self.end(Outcome(named[0], error=error))
            return self.outcomes
        await self._sort(named)
        self.meter.enter("uploading")
        batches = [self._send_batches() for _ in range(min(_BATCHES, self.shared.connections))]
        await all_or_none([*batches, self.bring(self._others, self._send_other)])
        await self.bring(self._left_over, self._send_other, begins=False)
        self.meter.enter("complete")
        return self.outcomes

    async def discard(self) -> None:
        for uploading in self._unfinished:
            with contextlib.suppress(errors.NotFound):
                await uploading.discard()

    async def _sort(self, files: Sequence[LocalFile]) -> None:
        for number, local in enumerate(files):
            if number % _TOLD_AT_ONCE == 0:
                await asyncio.sleep(0)
            unchanged = None if self.checksum else self._there.unchanged(local)
            if unchanged is not None:
                self.watcher.begun(local)
                self.end(Outcome(local, unchanged, "present"))
            elif self._small_bytes and local.size <= self._small_bytes:
                self._small.append(local)
            else:
                self._others.append(local)

    # In batches

    async def _send_batches(self) -> None:
        while self._small and not self.hopeless:
            await self.gate.wait()
            files = next_batch(self._small, self._batch_bytes)
            for local in files:
                self.watcher.begun(local)
            batch = await asyncio.to_thread(read_batch, files, self._small_bytes, self._there)
            for outcome in batch.outcomes:
                self.end(outcome)
            self._left_over += batch.grown
            await self._send(batch.members)

    async def _send(self, members: Sequence[Member]) -> None:
        """Send members until each has its outcome. Members whose answer was lost are found present at the next attempt."""
        retrying = self.api.retrying()
        while members:
            refused = await self._attempt(members)
            if len(refused) < len(members):
                retrying = self.api.retrying()
            members = [member for member, _ in refused]
            if refused:
                try:
                    await retrying.pause(refused[0][1])
                except errors.ClientError:
                    self._give_up(refused)
                    return

    async def _attempt(self, members: Sequence[Member]) -> list[Refused]:
        """Send members once, and report those with a final outcome. Return the others, with their errors."""
        length = length_of(members)
        wishes = plan.wishes(self.if_exists, None)
        self.meter.moving(length)
        try:
            async with self.shared.slots:
                began_at = time.monotonic()
                lines = await self.api.put_batch_once(wishes, length, pieces_of(members))
                longest = bytes_for(length, time.monotonic() - began_at)
                self._batch_bytes = min(longest, self.shared.most_body_bytes)
        except errors.ClientError as error:
            return [(member, error) for member in members]
        finally:
            self.meter.landed(length)
        refused: list[Refused] = []
        for member, line in zip(members, lines, strict=False):
            why = _error_of(member, line)
            if line.file is not None and why is None:
                self.end(self._made(member.local, line.file, "present" if line.status == 200 else "sent"))
            elif why is not None and why.retryable:
                refused.append((member, why))
            else:
                self.end(Outcome(member.local, error=why))
        broken_off = errors.Unreachable("the server got a part of a batch only")
        return refused + [(member, broken_off) for member in members[len(lines) :]]

    def _give_up(self, refused: Sequence[Refused]) -> None:
        """Stop sending members in batches, because that does not help."""
        first, why = refused[0]
        if isinstance(why, errors.Unauthenticated | errors.Unreachable):
            self.hopeless = True
            self.end(Outcome(first.local, error=why))
            return
        if isinstance(why, errors.ServerProblem) and why.code == BODY_LIMITED:
            # The next batch has half the size; a file sent alone halves it further.
            self._batch_bytes = max(1, why.fields["body_bytes"] // 2)
        for member, error in refused:
            if error.retryable:
                self.end(Outcome(member.local, error=error))
            else:  # the batch was refused: each file gets an answer of its own
                self._left_over.append(member.local)

    # Each for itself

    async def _send_other(self, local: LocalFile) -> Outcome:
        source = open_source(local.path)
        try:
            meter = Meter(local.name, source.size, partial(self.watcher.moved, local))
            candidates = self._there.candidates(local.name, source.size)
            destination = Destination(local.name, self.if_exists, candidates)
            uploading = Uploading(self.api, source, destination, meter, self.shared, self.gate)
            self._unfinished.add(uploading)
            file = await uploading.run()
            self._unfinished.discard(uploading)
            return self._made(local, file, uploading.how(file))
        finally:
            source.close()

    def _made(self, local: LocalFile, file: File, how: How) -> Outcome:
        return Outcome(local, file, how, replaced=self._there.replaced_by(file))


def _error_of(member: Member, line: Line) -> errors.ClientError | None:
    if line.name != member.local.name:
        return errors.BadAnswer(f"the server answers for {line.name!r} instead of {member.local.name!r}")
    if line.file is None:
        return error_of(line.problem or {}, line.status)
    if line.file.sha256 != member.sha256:
        return errors.ContentDiffers(
            f"{line.name}: the server has SHA-256 {line.file.sha256}, here it is {member.sha256}"
        )
    return None
