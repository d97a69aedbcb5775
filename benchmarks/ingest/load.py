"""What the load generator is told, what it says, and how it is run."""

import pickle
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

# What the generator says when it is as far as it is to be, and waits.
HELD = "held"
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request as it goes over the wire, and how long its body is; what it is, where that matters."""

    head: bytes
    length: int
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send: the requests of each connection."""

    port: int
    connections: Sequence[list[Request]]
    # No request is begun after so long.
    limit_seconds: float = 3600.0
    # The last bytes of every body are kept back until all others were sent.
    held_bytes: int = 0
    # The connections stay open, idle, when all is answered.
    stays: bool = False
    # Of the bytes that all bodies begin with, where it matters what they are.
    seed: int | None = None

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port


@dataclass(frozen=True, slots=True)
class Outcome:
    """How long it took from the first byte to the last answer, and what the generator used of the processor."""

    seconds: float
    cpu_seconds: float
    # Of the bodies of all requests that were answered.
    body_bytes: int
    # Of each request, from its first byte to its answer.
    took_seconds: list[float] = field(repr=False)


def content_of(length: int, seed: int) -> bytes:
    """The bytes of a seed."""
    chance = random.Random(seed)
    return b"".join(chance.randbytes(min(_PIECE_BYTES, length - at)) for at in range(0, length, _PIECE_BYTES))


class LoadFailed(Exception):
    """A server did not answer as it should."""


def head(method: str, path: str, length: int, headers: dict[str, str] | None = None) -> bytes:
    """The head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def send(plan: Plan) -> Outcome:
    """Send it all. Raises LoadFailed."""
    with sending(plan) as under_way:
        return under_way.outcome()


class UnderWay:
    """A generator that is at work."""

    def __init__(self, said: IO[bytes]) -> None:
        self._said = said

    def outcome(self) -> Outcome:
        """Wait for its end. Raises LoadFailed."""
        answer = pickle.load(self._said)
        if not isinstance(answer, Outcome):
            raise LoadFailed(answer)
        return answer


@contextmanager
def sending(plan: Plan) -> Iterator[UnderWay]:
    """Send it meanwhile."""
    with _generating(plan) as generator:
        assert generator.stdout is not None
        yield UnderWay(generator.stdout)


@contextmanager
def holding(plan: Plan) -> Iterator[None]:
    """As far as it is to be: the ends of bodies kept back, or all answered; the rest is sent at the end.

    Raises LoadFailed.
    """
    with _generating(plan) as generator:
        assert generator.stdin is not None
        assert generator.stdout is not None
        said = pickle.load(generator.stdout)
        if said != HELD:
            raise LoadFailed(said)
        yield
        generator.stdin.write(b"\n")
        generator.stdin.close()
        UnderWay(generator.stdout).outcome()


@contextmanager
def _generating(plan: Plan) -> "Iterator[subprocess.Popen[bytes]]":
    command = [sys.executable, "-m", "benchmarks.ingest.generator"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as generator:
        assert generator.stdin is not None
        try:
            pickle.dump(plan, generator.stdin)
            generator.stdin.flush()
            yield generator
        finally:
            generator.kill()
