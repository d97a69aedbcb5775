"""Workers take tasks of queues from a server, and hold each task while a handler works on it.

```python
worker = Worker("https://uploads.example.org", token)

@worker.handles("thumbnails", lease="5m")
def thumbnail(task: Task) -> None:
    make_thumbnail(task.save("/tmp/picture"))

worker.run()
```
"""

import asyncio
import inspect
import logging
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec

from uploader.client.api import Api
from uploader.client.download import Downloading
from uploader.client.errors import BadAnswer, ClientError, ServerProblem
from uploader.client.model import File
from uploader.client.pace import OnRetry, Patience
from uploader.client.transfer import Meter
from uploader.units import parse_duration

if TYPE_CHECKING:
    import httpx2

    from uploader.client.transport import Token, Transport

logger = logging.getLogger(__name__)

H = TypeVar("H", bound=Callable[[Any], Any])

# How long the server is asked to wait for a task.
_WAIT_SECONDS = 30.0
# A lease is extended after this part of its length.
_EXTENDED_AFTER = 1 / 3
# The delay of a task that a handler has failed.
_REST_SECONDS = 10.0
_LEASE_LOST = "lease-lost"
_MAX_ERROR_LENGTH = 1000


class _Claimed(msgspec.Struct):
    """A task as the server sends it."""

    id: str
    lease: str
    fence: int
    attempt: int
    lease_until: datetime
    event: dict[str, Any]


class _Tasks(msgspec.Struct):
    tasks: list[_Claimed]


_TASKS = msgspec.json.Decoder(_Tasks)


class _Queue(Api):
    """The calls of one queue."""

    def __init__(self, transport: "Transport", name: str) -> None:
        super().__init__(transport)
        self._place = f"/queues/{quote(name, safe='')}"

    async def claim(self, most: int, lease_seconds: float) -> list[_Claimed]:
        body = {"max": most, "lease_seconds": lease_seconds, "wait_seconds": _WAIT_SECONDS}
        return (await self._call("POST", f"{self._place}/claim", _TASKS, body=body)).tasks

    async def tell_of(self, task_id: str, verb: str, **body: Any) -> None:
        path = f"{self._place}/tasks/{quote(task_id, safe='')}/{verb}"
        await self._transport.request("POST", path, body=body)

    def content_of(self, task_id: str, lease: str) -> Api:
        return _Content(self._transport, f"{self._place}/tasks/{quote(task_id, safe='')}/content", lease)


class _Content(Api):
    """The content of one task."""

    def __init__(self, transport: "Transport", path: str, lease: str) -> None:
        super().__init__(transport)
        self._path, self._lease = path, lease

    def content_once(self, file_id: str, headers: dict[str, str]) -> "AbstractAsyncContextManager[httpx2.Response]":
        return self._transport.stream(self._path, {**headers, "Lease": self._lease})


class _HeldTask:
    """A task that this worker holds. `fence` grows with each claim of the task, so a handler that writes elsewhere can
    refuse the late writes of an earlier holder."""

    def __init__(self, queue: _Queue, claimed: _Claimed) -> None:
        self._queue = queue
        self._lease = claimed.lease
        self.id = claimed.id
        self.fence = claimed.fence
        self.attempt = claimed.attempt
        self.event: Mapping[str, Any] = claimed.event
        # Sent with the lease when the task is done.
        self.verdict: Mapping[str, str] = {}
        # True if the lease ended before the work: the result of this handler does not count.
        self.is_lost = False

    def refuse(self, reason: str) -> None:
        """Let the gate refuse the file when the handler returns. The file goes to its owner's trash, with `reason`.
        Without this call, the file passes."""
        self.verdict = {"verdict": "refuse", "reason": reason[:_MAX_ERROR_LENGTH]}

    @property
    def file(self) -> File:
        """Return the file of the event. Raises BadAnswer if the event has no file."""
        try:
            return msgspec.convert(self.event["data"]["file"], File)
        except (KeyError, TypeError, msgspec.ValidationError) as error:
            raise BadAnswer("the event of this task is about no file") from error

    async def _download(self, target: Path) -> Path:
        goes_on = asyncio.Event()
        goes_on.set()
        file = self.file
        content = self._queue.content_of(self.id, self._lease)
        await Downloading(content, file, Meter(file.name, file.size, None), goes_on).run(target, overwrite=True)
        return target


class AsyncTask(_HeldTask):
    """A task for a handler that is a coroutine."""

    async def save(self, path: "str | Path") -> Path:
        """Download the file. The path appears when the SHA-256 is right. Raises ClientError."""
        return await self._download(Path(path))


class Task(_HeldTask):
    """A task for a handler that is an ordinary function, which runs in a thread."""

    def __init__(self, queue: _Queue, claimed: _Claimed, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(queue, claimed)
        self._loop = loop

    def save(self, path: "str | Path") -> Path:
        """Download the file. The path appears when the SHA-256 is right. Raises ClientError."""
        return asyncio.run_coroutine_threadsafe(self._download(Path(path)), self._loop).result()


@dataclass(frozen=True, slots=True)
class _Handler:
    queue: str
    work: Callable[[Any], Any]
    lease_seconds: float
    at_once: int

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.work)


@dataclass(eq=False)
class Worker:
    """Takes tasks of the queues with a handler, extends their leases during the work, acknowledges finished tasks, and
    gives tasks back, with the error, when a handler raises.

    `token` is a token of the queues (`uploader token create USER --queue NAME`) or an administrator's. `patience` says
    how long to wait for a server that can't be reached; by default for ever.
    """

    url: str
    token: "Token | None" = None
    patience: Patience = field(default_factory=lambda: Patience(give_up_after_seconds=float("inf")))
    on_retry: OnRetry | None = None
    _handlers: list[_Handler] = field(default_factory=list, init=False)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def handles(self, queue: str, *, lease: str | float = "10m", at_once: int = 1) -> Callable[[H], H]:
        """Register a function or a coroutine for the tasks of a queue, for `at_once` tasks at the same time. If the
        worker dies, its tasks are free when the `lease` ends, a duration such as `10m` or seconds. Raises ValueError."""
        lease_seconds = parse_duration(lease) if isinstance(lease, str) else lease
        if at_once < 1:
            raise ValueError("a handler works on at least one task at once")

        def register(work: H) -> H:
            self._handlers.append(_Handler(queue, work, lease_seconds, at_once))
            return work

        return register

    def run(self) -> None:
        """Work until SIGTERM or SIGINT. Then finish the running tasks, and return. Raises ClientError."""
        asyncio.run(self._until_signal())

    async def _until_signal(self) -> None:
        loop = asyncio.get_running_loop()

        def stop(_number: int, _frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self.stop)

        # The event loop has no signal handlers on Windows.
        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            await self.serve()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Take no more tasks; running ones are finished. Call it from the event loop."""
        self._stopping.set()

    async def serve(self) -> None:
        """Work until `stop`. Raises ClientError if waiting does not help: a wrong token, a missing queue."""
        from uploader.client.transport import Transport

        slots = sum(handler.at_once for handler in self._handlers)
        transport = Transport(
            self.url,
            self.token,
            patience=self.patience,
            connections=2 * slots + len(self._handlers),
            on_retry=self.on_retry,
        )
        try:
            async with asyncio.TaskGroup() as group:
                for handler in self._handlers:
                    group.create_task(_Serving(_Queue(transport, handler.queue), handler, self._stopping).run())
        except BaseExceptionGroup as errors:
            raise _first_of(errors) from None
        finally:
            await transport.close()


def _first_of(errors: BaseExceptionGroup) -> BaseException:
    first = errors.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


class _Serving:
    """One handler at work."""

    def __init__(self, queue: _Queue, handler: _Handler, stopping: asyncio.Event) -> None:
        self._queue = queue
        self._handler = handler
        self._stopping = stopping
        self._working: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()

    async def run(self) -> None:
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            while not stopped.done():
                free = self._handler.at_once - len(self._working)
                if not free:
                    self._freed.clear()
                    freed = asyncio.ensure_future(self._freed.wait())
                    await _first_done(freed, stopped)
                    continue
                claim = asyncio.ensure_future(self._queue.claim(min(free, 100), self._handler.lease_seconds))
                await _first_done(claim, stopped)
                if claim.cancelled():
                    break
                for claimed in claim.result():
                    self._begin(claimed)
        finally:
            stopped.cancel()
            if self._working:
                await asyncio.wait(self._working)

    def _begin(self, claimed: _Claimed) -> None:
        task = asyncio.ensure_future(self._work(claimed))
        self._working.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._working.discard(task)
        self._freed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task has ended with an error; it is handed out again when its lease ends", exc_info=error)

    async def _work(self, claimed: _Claimed) -> None:
        facts = {"queue": self._handler.queue, "task_id": claimed.id, "attempt": claimed.attempt}
        work, task = self._attempt(claimed)
        with self._extending(claimed, task, work):
            try:
                await work
            except asyncio.CancelledError:
                if not task.is_lost:
                    raise
            except Exception as error:
                logger.exception("a task has failed", extra=facts)
                words = f"{type(error).__name__}: {error}"[:_MAX_ERROR_LENGTH]
                await self._tell(task, claimed, "release", error=words, delay_seconds=_REST_SECONDS)
                return
        if task.is_lost:
            logger.warning("a task took longer than its lease, and is somebody else's", extra=facts)
        else:
            await self._tell(task, claimed, "ack", **task.verdict)

    def _attempt(self, claimed: _Claimed) -> "tuple[asyncio.Task[Any], _HeldTask]":
        handler = self._handler
        if handler.is_async:
            held = AsyncTask(self._queue, claimed)
            return asyncio.ensure_future(handler.work(held)), held
        task = Task(self._queue, claimed, asyncio.get_running_loop())
        return asyncio.ensure_future(asyncio.to_thread(handler.work, task)), task

    async def _tell(self, task: _HeldTask, claimed: _Claimed, verb: str, **more: Any) -> None:
        try:
            await self._queue.tell_of(claimed.id, verb, lease=claimed.lease, **more)
        except ServerProblem as error:
            if error.code != _LEASE_LOST:
                raise
            task.is_lost = True

    @contextmanager
    def _extending(self, claimed: _Claimed, task: _HeldTask, work: "asyncio.Task[Any]") -> Iterator[None]:
        extending = asyncio.ensure_future(self._extend(claimed, task, work))
        try:
            yield
        finally:
            extending.cancel()

    async def _extend(self, claimed: _Claimed, task: _HeldTask, work: "asyncio.Task[Any]") -> None:
        """Extend the lease again and again. Once it is lost, cancel a coroutine; a function has to notice by itself."""
        seconds = self._handler.lease_seconds
        while not task.is_lost:
            await asyncio.sleep(seconds * _EXTENDED_AFTER)
            with suppress(ClientError):  # the rest of the lease bridges the failure
                await self._tell(task, claimed, "extend", lease_seconds=seconds)
        if self._handler.is_async:
            work.cancel()


async def _first_done(work: "asyncio.Task[Any]", stopped: "asyncio.Task[Any]") -> None:
    """Wait for work, or cancel it when the worker stops."""
    await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        work.cancel()
        await asyncio.wait({work})
