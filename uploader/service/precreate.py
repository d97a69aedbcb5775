"""The question before an upload: somebody else may refuse what is about to come, before anything of it is written.

Asked outside of any transaction. A request that is tried again inside asks once.
"""

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import KW_ONLY, asdict, dataclass, field
from http import HTTPStatus

import msgspec

from uploader.errors import NotAllowed, Unavailable
from uploader.service.ids import new_id
from uploader.sinks.webhook import NoAnswer, SignedPost

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 2.0
_AT_ONCE = 32
_MAX_DETAIL_CHARACTERS = 500
_CONTENT_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class Question:
    user_id: str
    name: str
    # None where its length is not known yet.
    size: int | None
    md5: str | None
    sha256: str | None


@dataclass(slots=True)
class Asker:
    """The origin of a request, and what it was allowed so far."""

    address: Callable[[], str | None]
    allowed: set[Question] = field(default_factory=set)


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

    async def ask(self, question: Question) -> None:
        """Raises NotAllowed, Unavailable."""
        asker = asker_of_request.get()
        if self.post is None or (asker is not None and question in asker.allowed):
            return
        address = None if asker is None else asker.address()
        body = msgspec.json.encode({**asdict(question), "client_address": address})
        try:
            async with asyncio.timeout(self.timeout_seconds), self._at_once:
                answer = await self.post.send(new_id(), body, _CONTENT_TYPE)
        except TimeoutError:
            self.post.close()  # whatever swallowed this question may have more of its connections
            self._fail(f"no answer within {self.timeout_seconds:g} s")
        except NoAnswer as error:
            self._fail(str(error))
        else:
            if HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise NotAllowed(_detail_of(answer.body))
            if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
                self._fail(f"it answered {answer.status}")
        if asker is not None:
            asker.allowed.add(question)

    def _fail(self, reason: str) -> None:
        logger.warning("nobody said whether an upload may come", extra={"reason": reason})
        if not self.allows_on_failure:
            raise Unavailable(
                "Nobody can say now whether this may be uploaded; try again.", inside=f"[pre_create]: {reason}"
            )

    def close(self) -> None:
        if self.post is not None:
            self.post.close()


def _detail_of(body: bytes) -> str | None:
    try:
        problem = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    detail = problem.get("detail") if isinstance(problem, dict) else None
    if not isinstance(detail, str) or not detail:
        return None
    return "".join(each if each.isprintable() else " " for each in detail[:_MAX_DETAIL_CHARACTERS])
