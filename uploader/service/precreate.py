"""The pre-create hook: before an operation creates a name, an application may refuse the operation or change name and
metadata of the file.

The hook is asked outside of transactions, once per request. If a transaction finds other names under its locks, the
transaction ends and the hook is asked about these names.
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
# The most names in one question: enough for a selection of files. A move of a prefix with more names is refused.
MOST_NAMES = 10_000
# A question with more names is encoded in a thread.
_MOST_NAMES_ON_LOOP = 100
# The longest metadata, in the form of the tus header.
MAX_METADATA_BYTES = 4096
_KEY = re.compile(r"[!-+\--~]+")


class _Told(msgspec.Struct):
    """Members of the answer. Other members are ignored."""

    name: str | None = None
    metadata: dict[str, str] | None = None


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question:
    """The names that an operation is about to create. Names of folders end in a slash."""

    creation: Creation
    user_id: str
    names: tuple[str, ...]
    # The size of a single file; None if still unknown.
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
    """The answer of the hook: the name of the file or folder (of several: the first), and metadata in the form of
    `Upload-Metadata` that replace the client's. Metadata None: the client's stay."""

    name: str
    metadata: str | None = None


@dataclass(slots=True)
class Asker:
    """The client address of a request, and the answers of the hook so far."""

    address: Callable[[], str | None]
    allowed: dict[Question, Allowed] = field(default_factory=dict)


asker_of_request: ContextVar[Asker | None] = ContextVar("asker", default=None)


@dataclass(eq=False, repr=False)
class PreCreateHook:
    # `post`: None allows everything. `timeout_seconds` includes the wait for a turn among parallel questions.
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
        """Return None if the hook failed and failures are allowed. Raises NotAllowed, Unavailable."""
        address, is_long = None if asker is None else asker.address(), len(question.names) > _MOST_NAMES_ON_LOOP
        body = await in_thread(question.told, address) if is_long else question.told(address)
        try:
            async with asyncio.timeout(self.timeout_seconds), self._at_once:
                answer = await post.sign_and_send(new_id(), body, _CONTENT_TYPE)
        except TimeoutError:
            post.close()  # the other connections may hang, too
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
    """The names that the hook has allowed for one request of a user, and the names still to ask about."""

    hook: PreCreateHook
    creation: Creation
    user_id: str
    # Allowed names, by the names asked about.
    _allowed: dict[str, str] = field(default_factory=dict, init=False)
    # Names to ask about, with their files; None for a folder or for several files that want the same name.
    _noted: dict[str, File | None] = field(default_factory=dict, init=False)

    def note(self, name: str, file: File | None = None) -> None:
        """Note a name to ask about, unless the hook has allowed the name. Raises InvalidRequest for too many names."""
        if not self.hook.is_on or name in self._allowed:
            return
        self._noted[name] = file if name not in self._noted else None
        if len(self._noted) > MOST_NAMES:
            raise InvalidRequest.field("prefix", f"begins more than {MOST_NAMES} names: move a folder, or fewer files")

    @property
    def is_to_ask(self) -> bool:
        """Return whether noted names wait for `ask`."""
        return bool(self._noted)

    async def ask(self) -> None:
        """Ask about all noted names in one question. Raises NotAllowed, Unavailable."""
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
        """Return the allowed name for a name."""
        return self._allowed.get(name, name)


async def with_folder(hook: PreCreateHook, user_id: str, name: str, work: Callable[[str, bool], Awaitable[T]]) -> T:
    """Run `work`, a transaction that makes a folder, with a name and a flag: true if the hook allows the name or is off.
    With the hook on, the first run has the flag false. If the run raises NotAsked because the folder is new, ask the hook
    and run `work` again with the allowed name. Raises NotAllowed, Unavailable, and errors of `work`."""
    if hook.is_on:
        with suppress(NotAsked):
            return await work(name, False)
        name = (await hook.ask(Question(FOLDER, user_id, (f"{name}/",)))).name.rstrip("/")
    return await work(name, True)


def _allowed_by(body: bytes, question: Question) -> Allowed:
    """Read name and metadata from an answer. A body that is no JSON object changes nothing. Raises ValueError."""
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
