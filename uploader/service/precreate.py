"""The question before each operation that creates a name: another application may refuse the operation before anything is
written, or give the file another name and other metadata.

The question is asked outside of any transaction, once a request. A transaction that finds other names under its locks
ends, and the hook is asked about these names.
"""

import asyncio
import base64
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field, replace
from http import HTTPStatus
from typing import TypeVar

import msgspec

from uploader.database.transactions.names import NotAsked
from uploader.domain.creations import FOLDER, Creation
from uploader.domain.names import normalise_name
from uploader.domain.upload import File
from uploader.errors import InvalidRequest, NotAllowed, Unavailable
from uploader.runtime.observability import Trouble
from uploader.runtime.tasks import in_thread
from uploader.service.ids import new_id
from uploader.sinks.webhook import NoAnswer, SignedPost

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 2.0
_AT_ONCE = 32
_MAX_DETAIL_CHARACTERS = 500
_CONTENT_TYPE = "application/json"
# Of one question: as many as a selection of files and folders may have, and more than that of a move of a prefix.
MOST_NAMES = 10_000
# A question of more names is written and signed in a thread.
_MOST_NAMES_ON_LOOP = 100
# Of metadata, as tus has them in a header.
MAX_METADATA_BYTES = 4096
_KEY = re.compile(r"[!-+\--~]+")


class _Told(msgspec.Struct):
    """Other members are for others."""

    name: str | None = None
    metadata: dict[str, str] | None = None


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question:
    """The names that an operation is about to create; the name of a folder ends with a slash."""

    creation: Creation
    user_id: str
    names: tuple[str, ...]
    # Of a single file; None where the length is not known yet.
    size: int | None = None
    md5: str | None = None
    sha256: str | None = None

    def told(self, address: str | None) -> bytes:
        """Return the question as JSON."""
        names = {"name": self.names[0]} if len(self.names) == 1 else {"names": self.names}
        facts = {"size": self.size, "md5": self.md5, "sha256": self.sha256, "client_address": address}
        return msgspec.json.encode({"operation": self.creation.question, "user_id": self.user_id, **names, **facts})


@dataclass(frozen=True, slots=True)
class Allowed:
    """The name that a file or a folder may have (for several: the first); and metadata, as `Upload-Metadata` has them, in
    place of its client's, which stand where there are none."""

    name: str
    metadata: str | None = None


@dataclass(slots=True)
class Asker:
    """The origin of a request, and what it was allowed so far."""

    address: Callable[[], str | None]
    allowed: dict[Question, Allowed] = field(default_factory=dict)


asker_of_request: ContextVar[Asker | None] = ContextVar("asker", default=None)


@dataclass(eq=False, repr=False)
class PreCreateHook:
    # None: everything may come. `timeout_seconds`: also for one's turn, among the many that are asked at once.
    post: SignedPost | None
    _: KW_ONLY
    allows_on_failure: bool
    timeout_seconds: float = TIMEOUT_SECONDS

    def __post_init__(self) -> None:
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._trouble = Trouble("pre_create")
        self.is_on = self.post is not None

    async def ask(self, question: Question) -> Allowed:
        """Raises NotAllowed, Unavailable."""
        asker, as_told = asker_of_request.get(), Allowed(question.names[0])
        if self.post is None:
            return as_told
        if asker is not None and question in asker.allowed:
            return asker.allowed[question]
        allowed = await self._ask(self.post, question, asker) or as_told
        if asker is not None:
            asker.allowed[question] = allowed
        return allowed

    async def _ask(self, post: SignedPost, question: Question, asker: Asker | None) -> Allowed | None:
        """Return None where what its client says stands. Raises NotAllowed, Unavailable."""
        address, is_long = None if asker is None else asker.address(), len(question.names) > _MOST_NAMES_ON_LOOP
        body = await in_thread(question.told, address) if is_long else question.told(address)
        try:
            async with asyncio.timeout(self.timeout_seconds), self._at_once:
                answer = await post.sign_and_send(new_id(), body, _CONTENT_TYPE)
        except TimeoutError:
            post.close()  # whatever swallowed this question may have more of its connections
            self._fail(f"no answer within {self.timeout_seconds:g} s")
        except NoAnswer as error:
            self._fail(str(error))
        else:
            if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR and self._trouble.is_open:
                self._trouble.worked()
            if HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise NotAllowed(_detail_of(answer.body))
            if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
                self._fail(f"it answered {answer.status}")
                return None
            try:
                return _allowed_by(answer.body, question)
            except ValueError as error:
                self._fail(str(error))
        return None

    def _fail(self, reason: str) -> None:
        is_told = self._trouble.note("nobody said whether a name may be created", kind=reason, reason=reason)
        if not self.allows_on_failure:
            error = Unavailable(
                "Nobody can say now whether this name may be created; try again.", inside=f"[pre_create]: {reason}"
            )
            error.is_told = is_told
            raise error

    def close(self) -> None:
        if self.post is not None:
            self.post.close()


@dataclass(eq=False, repr=False)
class Permission:
    """The names that the hook has allowed for one request of a user, and the names to ask the hook about."""

    hook: PreCreateHook
    creation: Creation
    user_id: str
    # The names that the files and folders may have, by the names that the hook was asked about.
    _allowed: dict[str, str] = field(default_factory=dict, init=False)
    # With the file of each: None for a folder, and for several files that want one name.
    _noted: dict[str, File | None] = field(default_factory=dict, init=False)

    def note(self, name: str, file: File | None = None) -> None:
        """Note a name to ask about, unless the hook has allowed this name. Raises InvalidRequest for too many."""
        if not self.hook.is_on or name in self._allowed:
            return
        self._noted[name] = file if name not in self._noted else None
        if len(self._noted) > MOST_NAMES:
            raise InvalidRequest.field("prefix", f"begins more than {MOST_NAMES} names: move a folder, or fewer files")

    @property
    def is_to_ask(self) -> bool:
        """Return whether names were noted that the hook was not asked about."""
        return bool(self._noted)

    async def ask(self) -> None:
        """Ask about all names that were noted, at once. Raises NotAllowed, Unavailable."""
        if not self._noted:
            return
        noted, self._noted = self._noted, {}
        names = tuple(noted)
        question = Question(self.creation, self.user_id, names)
        file = noted[names[0]] if len(names) == 1 else None
        if file is not None:
            question = replace(question, size=file.size, md5=file.md5, sha256=file.sha256)
        allowed = await self.hook.ask(question)
        self._allowed |= zip(names, (allowed.name, *names[1:]), strict=True)

    def allowed(self, name: str) -> str:
        """Return the name that a file may have in place of a name that was asked about."""
        return self._allowed.get(name, name)


async def with_folder(hook: PreCreateHook, user_id: str, name: str, work: Callable[[str, bool], Awaitable[T]]) -> T:
    """Run `work`, a transaction that makes a folder if it is not there, with the name of the folder and whether the hook
    allows this name. Where the transaction raises NotAsked, ask the hook, and run it again by the name of the answer. Raises
    NotAllowed, Unavailable, and what `work` raises."""
    if hook.is_on:
        with suppress(NotAsked):
            return await work(name, False)
        name = (await hook.ask(Question(FOLDER, user_id, (f"{name}/",)))).name.rstrip("/")
    return await work(name, True)


def _allowed_by(body: bytes, question: Question) -> Allowed:
    """Read what an answer has in place of what the client said. A body that is no JSON object says nothing. Raises
    ValueError."""
    asked = question.names[0]
    if not body.lstrip().startswith(b"{"):
        return Allowed(asked)
    try:
        told = msgspec.json.decode(body, type=_Told)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"its answer is no JSON of a name and metadata: {error}") from error
    ending = "/" if asked.endswith("/") else ""
    try:
        name = asked if told.name is None else normalise_name(told.name.removesuffix(ending)) + ending
    except ValueError as error:
        raise ValueError(f"the name in its answer {error}") from error
    takes_name = question.creation.takes_answered_name and len(question.names) == 1
    if told.name is not None and not takes_name and name != asked:
        raise ValueError("its answer has another name, which this operation can't take")
    return Allowed(name, None if told.metadata is None else _encoded(told.metadata))


def _encoded(metadata: Mapping[str, str]) -> str:
    """Raises ValueError."""
    if not all(map(_KEY.fullmatch, metadata)):
        raise ValueError("a key of the metadata in its answer is empty, or not ASCII without spaces and commas")
    try:
        pairs = [f"{key} {base64.b64encode(value.encode()).decode()}".rstrip() for key, value in metadata.items()]
    except UnicodeEncodeError as error:
        raise ValueError("the metadata in its answer are no valid Unicode") from error
    text = ",".join(pairs)
    if len(text) > MAX_METADATA_BYTES:
        raise ValueError(f"the metadata in its answer are longer than {MAX_METADATA_BYTES} bytes")
    return text


def _detail_of(body: bytes) -> str | None:
    try:
        problem = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    detail = problem.get("detail") if isinstance(problem, dict) else None
    if not isinstance(detail, str) or not detail:
        return None
    return "".join(each if each.isprintable() else " " for each in detail[:_MAX_DETAIL_CHARACTERS])
