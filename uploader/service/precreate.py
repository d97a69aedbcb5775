"""The question before an upload or a new name: somebody else may refuse what is about to come, before anything of it is
written, or give it another name and other metadata.

Asked outside of any transaction. A request that is tried again inside asks once.
"""

import asyncio
import base64
import logging
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import KW_ONLY, asdict, dataclass, field
from http import HTTPStatus

import msgspec

from uploader.domain.names import normalise_name
from uploader.errors import NotAllowed, Unavailable
from uploader.service.ids import new_id
from uploader.sinks.webhook import NoAnswer, SignedPost

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 2.0
_AT_ONCE = 32
_MAX_DETAIL_CHARACTERS = 500
_CONTENT_TYPE = "application/json"
# Of metadata, as tus has them in a header.
MAX_METADATA_BYTES = 4096
_KEY = re.compile(r"[!-+\--~]+")


class _Told(msgspec.Struct):
    """Other members are for others."""

    name: str | None = None
    metadata: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Question:
    user_id: str
    name: str
    # None where its length is not known yet.
    size: int | None
    md5: str | None
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Allowed:
    """The name of what may come; and metadata, as `Upload-Metadata` has them, in place of its client's, which stand where
    there are none."""

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
        self.is_on = self.post is not None

    async def ask(self, question: Question) -> Allowed:
        """Raises NotAllowed, Unavailable."""
        asker, as_told = asker_of_request.get(), Allowed(question.name)
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
        address = None if asker is None else asker.address()
        body = msgspec.json.encode({**asdict(question), "client_address": address})
        try:
            async with asyncio.timeout(self.timeout_seconds), self._at_once:
                answer = await post.send(new_id(), body, _CONTENT_TYPE)
        except TimeoutError:
            post.close()  # whatever swallowed this question may have more of its connections
            self._fail(f"no answer within {self.timeout_seconds:g} s")
        except NoAnswer as error:
            self._fail(str(error))
        else:
            if HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise NotAllowed(_detail_of(answer.body))
            if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
                self._fail(f"it answered {answer.status}")
                return None
            try:
                return _allowed_by(answer.body, question.name)
            except ValueError as error:
                self._fail(str(error))
        return None

    def _fail(self, reason: str) -> None:
        logger.warning("nobody said whether an upload may come", extra={"reason": reason})
        if not self.allows_on_failure:
            raise Unavailable(
                "Nobody can say now whether this may be uploaded; try again.", inside=f"[pre_create]: {reason}"
            )

    def close(self) -> None:
        if self.post is not None:
            self.post.close()


def _allowed_by(body: bytes, name: str) -> Allowed:
    """Read what an answer has in place of what the client said. A body that is no JSON object says nothing. Raises
    ValueError."""
    if not body.lstrip().startswith(b"{"):
        return Allowed(name)
    try:
        told = msgspec.json.decode(body, type=_Told)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"its answer is no JSON of a name and metadata: {error}") from error
    try:
        name = name if told.name is None else normalise_name(told.name)
    except ValueError as error:
        raise ValueError(f"the name in its answer {error}") from error
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
