"""A round of a race, and the acts of its sides: use cases of the server as its edge calls them, each ending in one word."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import httpx2

from tests.support.bodies import InPieces
from tests.support.content import KIB, Content
from tests.support.layout import blob_path
from uploader.bootstrap import Services
from uploader.domain.links import owner
from uploader.errors import Unavailable, UploaderError
from uploader.service.chunk import AlreadyComplete, Stored
from uploader.service.results import Acknowledged, Complete, Opening, Result, Target

ALICE, BOB = "alice", "bob"
# So many rounds are under way at once; the connections to the database suffice for them.
WAVE = 20
# For races in which many rounds share one content, and none shares its user with another that is under way.
CROWD = tuple(f"user{number}" for number in range(WAVE))
# Uploads that were opened `AGE_SECONDS` ago are idle, unless a chunk arrived since.
AGE_SECONDS, IDLE_SECONDS = 7200.0, 3600.0

_CHUNK_BYTES = 64 * KIB


@dataclass(frozen=True)
class Round:
    """One run of a race. `ids` are of what was made before it, by name."""

    number: int
    content: Content
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def lie(self) -> Content:
        """Other bytes of the same length."""
        return replace(self.content, seed=self.content.seed + 1)

    def having(self, **ids: str) -> "Round":
        return replace(self, ids=self.ids | ids)


def one_chunk(number: int) -> Content:
    """A short content, different in every round."""
    return Content(1000, seed=2 * number, name=f"{number}.bin")


def two_chunks(number: int) -> Content:
    """A content whose second chunk is short."""
    return Content(_CHUNK_BYTES + 100, seed=2 * number, name=f"{number}.bin")


def one_of_five(number: int) -> Content:
    """One of five contents, so that rounds meet in them."""
    return one_chunk(number % 5)


@dataclass(frozen=True)
class Worker:
    """Services that run, and a client for the user whose token it has."""

    services: Services
    clients: dict[str, httpx2.AsyncClient]


Act = Callable[[Worker, Round], Awaitable[str]]


async def word_of(act: Act, worker: Worker, round_: Round) -> str:
    """How an act ended; an error of the contract is a word, too. Every other one is a finding."""
    try:
        return await act(worker, round_)
    except Unavailable as error:
        return f"{error.code}: {error.detail}"
    except UploaderError as error:
        return error.code
    except Exception as error:
        return repr(error)


def opening_of(content: Content, user_id: str, *, instant: bool = False) -> Opening:
    return Opening(
        caller=owner(user_id),
        md5=content.md5,
        sha256=None,
        name=content.name,
        size=content.size,
        chunk_size=content.chunk_size,
        instant=instant,
    )


async def keep(worker: Worker, target: Target, content: Content, number: int) -> Stored | Result:
    """What becomes of a chunk, until it is kept."""
    receiving, body = worker.services.receiving, InPieces(content.chunk(number))
    try:
        upload = await receiving.admit(target, number, body.length)
        return await receiving.store(target, upload, number, body)
    except AlreadyComplete as already:
        return already.complete


async def store(worker: Worker, target: Target, content: Content, number: int) -> Result:
    """What becomes of a chunk, to its answer."""
    kept = await keep(worker, target, content, number)
    return await worker.services.receiving.answer(kept) if isinstance(kept, Stored) else kept


def _word(answer: Result) -> str:
    if isinstance(answer, Acknowledged):
        return "acknowledged"
    return "complete" if isinstance(answer, Complete) else "uploading"


def sends(number: int, *, user_id: str = ALICE, upload: str | None = None, lie: bool = False) -> Act:
    """Sends a chunk by the MD5, or to the `upload` of that name."""

    async def act(worker: Worker, round_: Round) -> str:
        target = (
            Target(owner(user_id), round_.content.md5)
            if upload is None
            else Target(owner(user_id), None, round_.ids[upload])
        )
        return _word(await store(worker, target, round_.lie if lie else round_.content, number))

    return act


async def cancels(worker: Worker, round_: Round) -> str:
    await worker.services.uploads.cancel(Target(owner(ALICE), round_.content.md5))
    return "cancelled"


async def reopens(worker: Worker, round_: Round) -> str:
    """Cancels, and opens again."""
    word = await word_of(cancels, worker, round_)
    if word not in ("cancelled", "upload-not-found"):
        return word
    return _word(await worker.services.openings.open(opening_of(round_.content, ALICE)))


async def opens_instantly(worker: Worker, round_: Round) -> str:
    return _word(await worker.services.openings.open(opening_of(round_.content, BOB, instant=True)))


async def expires(worker: Worker, round_: Round) -> str:
    upload = await worker.services.uploads.by_md5(owner(ALICE), round_.content.md5)
    if upload is None:
        return "left"
    return "expired" if await worker.services.closers.expire(upload, IDLE_SECONDS) else "left"


async def asks(worker: Worker, round_: Round) -> str:
    """Where Redis does not know what the disk does, this hydrates."""
    await worker.services.uploads.status(Target(owner(ALICE), round_.content.md5))
    return "told"


async def merges(worker: Worker, round_: Round) -> str:
    return _word(await worker.services.uploads.merge(Target(owner(ALICE), round_.content.md5)))


async def deletes(worker: Worker, round_: Round) -> str:
    await worker.services.files.delete(ALICE, round_.ids["file"])
    return "deleted"


async def downloads(worker: Worker, round_: Round) -> str:
    response = await worker.clients[ALICE].get(f"/me/files/{round_.ids['file']}/content")
    if response.status_code != 200:
        return str(response.json()["code"])
    return "whole" if response.content == round_.content.data else "other bytes"


async def collects(worker: Worker, round_: Round) -> str:
    await worker.services.files.collect(round_.content.sha256)
    return "collected"


async def uploads_and_deletes(worker: Worker, round_: Round) -> str:
    """Has a content, instantly where it is there, reads it and deletes it."""
    user_id, content = CROWD[round_.number % len(CROWD)], round_.content
    answer: Result = await worker.services.openings.open(opening_of(content, user_id, instant=True))
    if not isinstance(answer, Complete):
        answer = await store(worker, Target(owner(user_id), content.md5), content, 0)
    if not isinstance(answer, Complete):
        return _word(answer)
    if blob_path(worker.services.settings.data, answer.file.sha256).read_bytes() != content.data:
        return "other bytes"
    await worker.services.files.delete(user_id, answer.file.id)
    return "deleted"


# What goes on without a pause while rounds are run; it belongs to none of them.
Steady = Callable[[Worker], Awaitable[object]]


async def cleans_up(worker: Worker) -> None:
    """Every month there is."""
    await worker.services.cleanup.clean(opened_before=datetime(9999, 12, 1, tzinfo=UTC), idle_seconds=IDLE_SECONDS)


async def collects_all(worker: Worker) -> None:
    await worker.services.files.collect_all()
