"""One round: a server, its clients, and flips; after each few of them everything is looked at, and made well again."""

import asyncio
import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from pathlib import Path

import httpx2

from tests.soak.clients import TOTAL_SPACE, Client, Habits, Promises, Record, Trouble
from tests.soak.flips.flipping import LIVE, STOPPED, Flip, Flipper, contents_of
from tests.soak.flips.installation import Installation, is_one_line, last_words
from tests.soak.flips.judging import OWNER, Looks, Verdict, judge
from tests.soak.result import Result
from tests.support.content import MIB
from tests.support.process import owner_token
from tests.support.waiting import PATIENCE_SECONDS

# For what says "not now"; of whoever was hit, it may say so for ever.
_PATIENCE_SECONDS = 20.0
_CLIENTS = 8
_HABITS = Habits(
    {"finish": 10, "leave": 4, "download": 5, "delete": 2},
    max_kept_bytes=2 * MIB,
    ranges=8,
    patience_seconds=_PATIENCE_SECONDS,
)
# So long clients work before, between and after flips.
_WORK_SECONDS = (0.2, 0.8)


async def run_flips(directory: Path, *, seed: int, flips: int = sys.maxsize, seconds: float = sys.maxsize) -> Result:
    """In a directory that is empty: so many, of all kinds in turn, or as many as there is time for."""
    installation, started = Installation(directory), time.monotonic()
    try:
        refusal = installation.start()
        assert refusal is None, refusal
        async with _clients(installation, seed) as (record, clients):
            round_ = _Round(installation, record, clients, seed)
            await round_.run(flips, started + seconds)
    finally:
        installation.end()
    outcomes = Counter(f"{flip.kind} {flip.outcome}" for flip in round_.flips)
    counts = {name: record.counts[name] for name in ("chunks", "files", "downloads", "ranges")}
    verdict = round_.verdict
    return Result(
        "flips",
        "SQLite, disk",
        seed,
        time.monotonic() - started,
        {"flips": len(round_.flips), **dict(sorted(outcomes.items())), **counts},
        {
            "wrong bytes served": len(verdict.wrong_bytes),
            "harm to users that were not hit": len(verdict.harmed),
            "cases that nothing named": len(verdict.unnamed),
            "commands and starts that failed with a trace": len(verdict.failed),
        },
        verdict.wrong_bytes + verdict.harmed + verdict.unnamed + verdict.failed,
        more=verdict.not_tellable + [f"{flip.outcome}: {flip}" for flip in round_.flips],
    )


def _groups(seed: int) -> Iterator[list[str]]:
    """As many of each kind; those made while clients work together, each of the others alone."""
    chosen = random.Random(f"{seed}/plan")
    while True:
        yield chosen.sample(LIVE, len(LIVE))
        yield from ([kind] for kind in chosen.sample(STOPPED, len(STOPPED)))


class _Round:
    """What goes on in a round."""

    def __init__(self, installation: Installation, record: Record, clients: list[Client], seed: int) -> None:
        self._installation = installation
        self._record = record
        self._clients = clients
        self._seed = seed
        self.flips: list[Flip] = []
        self.verdict = Verdict()
        self._flipper = Flipper(installation, clients, seed)
        self._random = random.Random(f"{seed}/round")
        self._owner = {"Authorization": f"Bearer {owner_token(installation.data)}"}

    async def run(self, flips: int, deadline: float) -> None:
        await self._work_in_peace()
        for kinds in _groups(self._seed):
            if len(self.flips) >= flips or time.monotonic() > deadline:
                return
            if kinds[0] in STOPPED:
                await self._flip_while_stopped(kinds[0])
            else:
                await self._flip_while_working(kinds)

    # While clients work

    async def _flip_while_working(self, kinds: list[str]) -> None:
        flips = []
        async with self._working():
            for kind in kinds:
                await self._pause()
                flips.append(await self._flip(kind))
            await self._pause()
        contents = contents_of(self._clients)
        for flip in flips:
            await asyncio.gather(*(client.finish(flip.sha256) for client in self._clients if flip.sha256))
        looks = await self._look()
        for flip in flips:
            self._flipper.add_users(flip)
        md5s = {sha256: content.md5 for sha256, content in (contents | contents_of(self._clients)).items()}
        self.verdict.add(judge(flips, self._record.troubles, looks, md5s))
        for flip in flips:
            self._flipper.undo(flip)
            await asyncio.gather(*(client.discard(flip.sha256) for client in self._clients if flip.sha256))
        self._begin_anew()

    async def _flip(self, kind: str) -> Flip:
        """What is to flip may not be there at the moment, such as an open upload."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (flip := self._flipper.flip(len(self.flips), kind)) is None:
                await asyncio.sleep(0.02)
        self.flips.append(flip)
        return flip

    # While the server is stopped

    async def _flip_while_stopped(self, kind: str) -> None:
        async with self._working():
            await self._pause()
            await self._record.hold()
            self._installation.stop()
            self._installation.keep_copy()
            promises = {client.user_id: deepcopy(client.promises) for client in self._clients}
            flip = await self._flip(kind)
            refusal = self._installation.start()
            if refusal is not None:
                self._refused(flip, refusal)
                self._restore()
            self._record.let_go_on()
            await self._pause()
        if refusal is None:
            looks = await self._look()
            self._flipper.add_users(flip)
            self.verdict.add(judge([flip], self._record.troubles, looks, {}))
            self._installation.stop()
            self._restore()
            self._begin_anew(promises)
        else:
            self._begin_anew()

    def _refused(self, flip: Flip, refusal: str) -> None:
        flip.outcome = "named by the start"
        flip.troubles = [refusal.strip()]
        if not is_one_line(refusal):
            flip.outcome = "refused with a trace"
            self.verdict.failed.append(f"{flip}, start: {last_words(refusal)}")

    def _restore(self) -> None:
        self._installation.put_back()
        refusal = self._installation.start()
        assert refusal is None, refusal

    # Both

    async def _look(self) -> Looks:
        """Scrub and reconcile while nobody works, then look at every promise."""
        looks = Looks()
        looks.damaged, failed = await asyncio.to_thread(self._installation.scrub)
        looks.failed |= {"scrub": failed} if failed else {}
        self._record.scrubbed = True
        looks.drifts, failed = await asyncio.to_thread(self._installation.reconcile)
        looks.failed |= {"reconcile": failed} if failed else {}
        named = {drift["subject"] for drift in looks.drifts}
        looking = [client.verify(is_hit=client.user_id in named) for client in self._clients]
        await asyncio.gather(self._look_at_lists(), *looking)
        return looks

    async def _look_at_lists(self) -> None:
        """What an administrator sees of everybody is seen, whoever was hit."""
        async with httpx2.AsyncClient(base_url=self._installation.url, headers=self._owner, timeout=20) as client:
            for path in ("/admin/usage", "/admin/uploads", "/admin/usage/summary"):
                response = await client.get(path)
                if response.status_code != 200:
                    told = f"GET {path}: {response.status_code}"
                    self._record.troubles.append(Trouble(OWNER, None, told, scrubbed=True))

    def _begin_anew(self, promises: dict[str, Promises] | None = None) -> None:
        self._record.troubles.clear()
        self._record.scrubbed = False
        for client in self._clients:
            client.begin_anew(None if promises is None else promises[client.user_id])

    @contextlib.asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        """Within, clients work."""
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as living:
            for client in self._clients:
                living.create_task(client.live(stopping))
            try:
                yield
            finally:
                stopping.set()

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.uniform(*_WORK_SECONDS))

    async def _work_in_peace(self) -> None:
        async with self._working():
            while not all(client.promises.files for client in self._clients):
                await asyncio.sleep(0.1)
        self.verdict.harmed += [f"{trouble}, before any flip" for trouble in self._record.troubles]
        self._begin_anew()


@contextlib.asynccontextmanager
async def _clients(installation: Installation, seed: int) -> AsyncIterator[tuple[Record, list[Client]]]:
    record, clients = Record(), []
    async with contextlib.AsyncExitStack() as stack:
        for number in range(_CLIENTS):
            user_id = f"user{number}"
            created = installation.run("token", "create", user_id, "--total-space", str(TOTAL_SPACE))
            token = created.stdout.split()[-1]
            clients.append(Client(user_id, token, [installation.url], _HABITS, seed, record))
            stack.push_async_callback(clients[-1].close)
        yield record, clients
