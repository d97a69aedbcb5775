"""One round: a server, its clients, and flips; after each few of them everything is looked at, and made well again."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.flips.clients import TOTAL_SPACE, Client, Desk, Promises, Trouble
from tests.flips.flipping import LIVE, STOPPED, Flip, Flipper, contents_of
from tests.flips.installation import Installation, is_one_line, last_words
from tests.flips.judging import OWNER, Looks, Verdict, judge
from tests.support.process import owner_token

_CLIENTS = 8
# So long clients work before, between and after flips.
_WORK_SECONDS = (0.2, 0.8)
_FIND_TRIES = 100


@dataclass
class Summary:
    """What a round did and found."""

    seed: int
    flips: list[Flip] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    wrong_bytes: list[str] = field(default_factory=list)
    harmed: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    not_tellable: list[str] = field(default_factory=list)

    @property
    def violations(self) -> list[str]:
        return self.wrong_bytes + self.harmed + self.unnamed + self.failed

    @property
    def outcomes(self) -> "Counter[tuple[str, str]]":
        return Counter((flip.kind, flip.outcome) for flip in self.flips)

    def add(self, verdict: Verdict) -> None:
        self.wrong_bytes += verdict.wrong_bytes
        self.harmed += verdict.harmed
        self.unnamed += verdict.unnamed
        self.failed += verdict.failed
        self.not_tellable += verdict.not_tellable

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


async def run_round(directory: Path, *, flips: int, seed: int) -> Summary:
    """In a directory that is empty; `flips` of all kinds in turn."""
    installation = Installation(directory)
    summary = Summary(seed)
    try:
        refusal = installation.start()
        assert refusal is None, refusal
        async with _clients(installation, seed) as (desk, clients):
            await _Round(installation, desk, clients, summary).run(_plan(flips, seed))
            summary.counts = dict(sorted(desk.counts.items()))
    finally:
        installation.end()
    return summary


def _plan(flips: int, seed: int) -> list[list[str]]:
    """As many of each kind; those made while clients work together, each of the others alone."""
    kinds = [*LIVE, *STOPPED]
    groups: list[list[str]] = []
    for number in range(0, flips, len(kinds)):
        some = kinds[: flips - number]
        groups.append([kind for kind in some if kind in LIVE])
        groups += [[kind] for kind in some if kind in STOPPED]
    chosen = random.Random(f"{seed}/plan")
    for group in groups:
        chosen.shuffle(group)
    return groups


class _Round:
    """What goes on in a round."""

    def __init__(self, installation: Installation, desk: Desk, clients: list[Client], summary: Summary) -> None:
        self._installation = installation
        self._desk = desk
        self._clients = clients
        self._summary = summary
        self._flipper = Flipper(installation, clients, summary.seed)
        self._random = random.Random(f"{summary.seed}/round")
        self._number = 0
        self._owner = {"Authorization": f"Bearer {owner_token(installation.data)}"}

    async def run(self, plan: list[list[str]]) -> None:
        await self._work_for(3.0)
        for kinds in plan:
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
                flip = await self._flip(kind)
                flips += [flip] if flip is not None else []
            await self._pause()
        self._summary.flips += flips
        contents = contents_of(self._clients)
        for flip in flips:
            await asyncio.gather(*(client.finish(flip.sha256) for client in self._clients if flip.sha256))
        looks = await self._look()
        for flip in flips:
            self._flipper.add_users(flip)
        md5s = {sha256: content.md5 for sha256, content in (contents | contents_of(self._clients)).items()}
        self._summary.add(judge(flips, self._desk.troubles, looks, md5s))
        for flip in flips:
            self._flipper.undo(flip)
            await asyncio.gather(*(client.discard(flip.sha256) for client in self._clients if flip.sha256))
        self._begin_anew()

    async def _flip(self, kind: str) -> Flip | None:
        """What is to flip may not be there at the moment, such as an open upload."""
        for _ in range(_FIND_TRIES):
            flip = self._flipper.flip(self._number, kind)
            if flip is not None:
                self._number += 1
                return flip
            await asyncio.sleep(0.02)
        self._desk.counts[f"nothing to flip: {kind}"] += 1
        return None

    # While the server is stopped

    async def _flip_while_stopped(self, kind: str) -> None:
        async with self._working():
            await self._pause()
            await self._desk.hold()
            self._installation.stop()
            self._installation.keep_copy()
            promises = {client.user_id: deepcopy(client.promises) for client in self._clients}
            flip = self._flipper.flip(self._number, kind)
            assert flip is not None
            self._number += 1
            self._summary.flips.append(flip)
            refusal = self._installation.start()
            if refusal is not None:
                self._refused(flip, refusal)
                self._restore()
            self._desk.let_go_on()
            await self._pause()
        if refusal is None:
            looks = await self._look()
            self._flipper.add_users(flip)
            self._summary.add(judge([flip], self._desk.troubles, looks, {}))
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
            self._summary.failed.append(f"{flip}, start: {last_words(refusal)}")

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
        self._desk.scrubbed = True
        looks.drifts, failed = await asyncio.to_thread(self._installation.reconcile)
        looks.failed |= {"reconcile": failed} if failed else {}
        await asyncio.gather(self._look_at_lists(), *(client.verify() for client in self._clients))
        return looks

    async def _look_at_lists(self) -> None:
        """What an administrator sees of everybody is seen, whoever was hit."""
        async with httpx2.AsyncClient(base_url=self._installation.url, headers=self._owner, timeout=20) as client:
            for path in ("/admin/usage", "/admin/uploads", "/admin/usage/summary"):
                response = await client.get(path)
                if response.status_code != 200:
                    told = f"GET {path}: {response.status_code}"
                    self._desk.troubles.append(Trouble(OWNER, None, told, scrubbed=True))

    def _begin_anew(self, promises: dict[str, Promises] | None = None) -> None:
        self._desk.troubles.clear()
        self._desk.scrubbed = False
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

    async def _work_for(self, seconds: float) -> None:
        async with self._working():
            await asyncio.sleep(seconds)
        self._summary.harmed += [
            f"{trouble.user_id}, before any flip: {trouble.what}" for trouble in self._desk.troubles
        ]
        self._begin_anew()


@contextlib.asynccontextmanager
async def _clients(installation: Installation, seed: int) -> AsyncIterator[tuple[Desk, list[Client]]]:
    desk, clients = Desk(), []
    for number in range(_CLIENTS):
        user_id = f"user{number}"
        created = installation.run("token", "create", user_id, "--total-space", str(TOTAL_SPACE))
        clients.append(Client(user_id, created.stdout.split()[-1], installation.url, seed, desk))
    try:
        yield desk, clients
    finally:
        for client in clients:
            await client.close()
