"""How many files come down: each for itself, several at a time, and those that are here already not at all."""

import asyncio
import stat
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from uploader.client.api import Api
from uploader.client.errors import ClientError, Unauthenticated, Unreachable, Unwritable
from uploader.client.fetching.targets import Wanted, placed, sorted_out
from uploader.client.many.files import LocalFile, Outcome, Watcher
from uploader.client.many.there import There
from uploader.client.transfers.download import Downloading
from uploader.client.transfers.progress import Meter, Progress
from uploader.client.transfers.sending import all_or_none
from uploader.client.transfers.shared import Shared


class ManyDownloads:
    """Brings many files into a directory. What stands between us and the server stands between it and all of them: it is
    told of one, and the rest is not begun; any other failure is of its file alone."""

    def __init__(
        self,
        api: Api,
        shared: Shared,
        watcher: Watcher,
        meter: Meter,
        gate: asyncio.Event,
        *,
        overwrite: bool,
        checksum: bool,
    ) -> None:
        """With `checksum` a file that is here is compared by its digest, not by its time of modification."""
        self._api = api
        self._shared = shared
        self._watcher = watcher
        self._meter = meter
        self._gate = gate
        self._overwrite = overwrite
        self._checksum = checksum
        self._hopeless = False
        self._outcomes: list[Outcome] = []
        self._complete_bytes = 0

    async def run(self, wanted: Sequence[Wanted], root: Path) -> list[Outcome]:
        """What became of them; those that were not begun are not among it."""
        self._meter.enter("downloading")
        chosen, refused = sorted_out(wanted)
        for each, error in refused:
            local = LocalFile(each.path, each.file.name, each.file.size, 0)
            self._watcher.begun(local)
            self._end(Outcome(local, error=error))
        waiting = deque(chosen)
        await all_or_none(self._fetch(waiting, root) for _ in range(min(self._shared.connections, len(waiting))))
        self._meter.enter("complete")
        return self._outcomes

    async def _fetch(self, waiting: "deque[Wanted]", root: Path) -> None:
        while waiting and not self._hopeless:
            await self._gate.wait()
            wanted = waiting.popleft()
            local = LocalFile(root / wanted.path, wanted.file.name, wanted.file.size, 0)
            self._watcher.begun(local)
            try:
                self._end(await self._fetch_one(wanted, root, local))
            except ClientError as error:
                self._hopeless |= isinstance(error, Unauthenticated | Unreachable)
                self._end(Outcome(local, error=error))

    async def _fetch_one(self, wanted: Wanted, root: Path, local: LocalFile) -> Outcome:
        def tell(progress: Progress) -> None:
            self._watcher.moved(local, progress)

        file = wanted.file
        try:
            target = await asyncio.to_thread(placed, root, wanted.path)
        except OSError as error:
            raise Unwritable(f"{error.filename or local.path}: {error.strerror}") from error
        if not self._checksum and await asyncio.to_thread(_is_unchanged, wanted, target):
            return Outcome(local, file, "present")
        # Of one content in one directory there is one partial file.
        async with self._shared.alone(f"{target.parent}/{file.sha256}"):
            meter = Meter(file.name, file.size, tell)
            how = await Downloading(self._api, file, meter, self._gate).run(target, overwrite=self._overwrite)
            meter.enter("complete")
        return Outcome(local, file, how)

    def _end(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        if outcome.file is not None:
            self._complete_bytes += outcome.file.size
            self._meter.received(self._complete_bytes)
        self._watcher.ended(outcome)


def _is_unchanged(wanted: Wanted, target: Path) -> bool:
    """Whether it is here already, by size and time of modification."""
    try:
        status = target.lstat()
    except OSError:
        return False
    here = LocalFile(target, wanted.file.name, status.st_size, status.st_mtime_ns)
    return stat.S_ISREG(status.st_mode) and There([wanted.file], "keep").unchanged(here) is not None
