"""A bucket of a real server, looked at by its calls: they are counted, and one of them may be held up, or given to somebody
else to make something of it."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

from prometheus_client import REGISTRY

from tests.support.waiting import PATIENCE_SECONDS
from uploader.addresses import BucketAddress
from uploader.storage.base import Body
from uploader.storage.s3.bucket import Bucket, ObjectReader, Stat

T = TypeVar("T")


class Hold:
    """A call that stands still until the test lets it go on."""

    def __init__(self) -> None:
        self._is_there = threading.Event()
        self._may_go = threading.Event()

    def stand_still(self) -> None:
        self._is_there.set()
        assert self._may_go.wait(PATIENCE_SECONDS), "nobody has let it go on"

    async def is_there(self) -> None:
        assert await asyncio.to_thread(self._is_there.wait, PATIENCE_SECONDS), "nobody has come here"

    def let_go(self) -> None:
        self._may_go.set()


class WatchedBucket(Bucket):
    """As the server has it."""

    def __init__(self, address: BucketAddress) -> None:
        super().__init__(address)
        self.calls: Counter[str] = Counter()
        self.read_bytes = 0
        # The clock of the server, in the eyes of who asks for it.
        self.ahead = timedelta()
        self._before: dict[str, Callable[[], None]] = {}
        self._after: dict[str, Callable[[], None]] = {}

    @contextmanager
    def held(self, name: str, *, after: bool) -> Iterator[Hold]:
        """The next call of this name stands still before it is made, or after that; it goes on at the end of this."""
        hold, where = Hold(), self._after if after else self._before

        def once() -> None:
            del where[name]
            hold.stand_still()

        where[name] = once
        try:
            yield hold
        finally:
            where.pop(name, None)
            hold.let_go()

    @asynccontextmanager
    async def asleep(self, name: str, work: Coroutine[Any, Any, T], *, after: bool) -> AsyncIterator["asyncio.Task[T]"]:
        """Somebody whose work stands still at such a call, until the end of this."""
        with self.held(name, after=after) as hold:
            zombie = asyncio.create_task(work)
            await hold.is_there()
            yield zombie

    def _call(self, name: str, real: Callable[..., T], *arguments: Any) -> T:
        self.calls[name] += 1
        self._before.get(name, _nothing)()
        result = real(*arguments)
        self._after.get(name, _nothing)()
        return result

    def put(self, key: str, body: Body) -> str:
        return self._call("put", super().put, key, body)

    def head(self, key: str) -> Stat | None:
        return self._call("head", super().head, key)

    def stream(self, key: str, offset: int, length: int) -> ObjectReader:
        self.read_bytes += length
        return self._call("get", super().stream, key, offset, length)

    def delete(self, keys: Sequence[str]) -> None:
        self._call("delete", super().delete, keys)

    def upload_part(self, key: str, multipart_id: str, number: int, body: Body) -> str:
        return self._call("upload_part", super().upload_part, key, multipart_id, number, body)

    def complete(self, key: str, multipart_id: str, etags: Sequence[str]) -> None:
        self._call("complete", super().complete, key, multipart_id, etags)

    def abort(self, key: str, multipart_id: str) -> None:
        self._call("abort", super().abort, key, multipart_id)

    def clock(self) -> datetime:
        return super().clock() + self.ahead

    # What there is

    def keys(self, prefix: str = "") -> list[str]:
        """All objects."""
        return [stat.key for batch in self.list_keys(prefix) for stat in batch]

    def multiparts(self) -> list[tuple[str, str]]:
        """All multipart uploads: their keys and ids."""
        return [(key, multipart_id) for batch in self.list_multiparts() for key, multipart_id, _ in batch]

    def left(self) -> list[str]:
        """All that is of uploads or contents."""
        return [key for key in self.keys() if key[:2] in ("u/", "w/", "s/")] + [key for key, _ in self.multiparts()]


def _nothing() -> None:
    pass


# What is asked of S3, by whichever bucket


@contextmanager
def requests() -> Iterator[Counter[str]]:
    """Count what is asked of S3 meanwhile, by operation."""
    counted: Counter[str] = Counter()
    before = _requests()
    yield counted
    counted.update(_requests() - before)


def _requests() -> Counter[str]:
    samples = [
        sample for metric in REGISTRY.collect() if metric.name == "uploader_s3_requests" for sample in metric.samples
    ]
    return Counter({s.labels["operation"]: int(s.value) for s in samples if s.name.endswith("_total")})
