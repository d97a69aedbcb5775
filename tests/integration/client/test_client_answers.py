"""What a server can do to the memory of a client, by its answers: nothing. A real one over a socket, which lies."""

import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.lying import claimed, lying
from uploader.client import AsyncClient, BadAnswer, File, Patience, ServerProblem

_MIB = 1 << 20
_JSON = {"Content-Type": "application/json"}
_FILE = msgspec.convert({name: value for name, value in claimed("f", b"f").items() if name != "content"}, File)
_PROBLEM = {"Content-Type": "application/problem+json"}
_GZIP = {"Content-Encoding": "gzip"}


class Endless:
    """A body, and how much of it somebody took."""

    def __init__(self, begin: bytes) -> None:
        self._begin = begin
        self.taken = 0

    def __iter__(self) -> Iterator[bytes]:
        yield self._begin
        while self.taken < 512 * _MIB:
            self.taken += _MIB
            yield b" " * _MIB


def client(url: str) -> AsyncClient:
    return AsyncClient(url, "token", patience=Patience(give_up_after_seconds=0))


def page(next_: str | None, *names: str) -> bytes:
    files: list[dict[str, Any]] = [claimed(name, b"") for name in names]
    return json.dumps({"files": [{**file, "content": None} for file in files], "next": next_}).encode()


async def test_an_endless_answer_is_not_read_to_its_end() -> None:
    body = Endless(b'{"files": [], "next": null}')
    with lying(says=lambda _target: (200, _JSON, body)) as liar:
        async with client(liar.url) as made:
            with pytest.raises(BadAnswer, match="more than 64 MiB"):
                [file async for file in made.files()]
    assert body.taken < 128 * _MIB


@pytest.mark.parametrize(("status", "expected"), [(404, BadAnswer), (503, ServerProblem)])
async def test_an_endless_problem_is_none_of_ours(tmp_path: Path, status: int, expected: type[Exception]) -> None:
    body = Endless(b'{"code": "endless", "detail": "')
    with lying(says=lambda _target: (status, _PROBLEM, body)) as liar:
        async with client(liar.url) as made:
            with pytest.raises(expected, match=str(status)):
                await made.usage()
            with pytest.raises(expected, match=str(status)):
                await made.download(_FILE, tmp_path / "file")
    assert body.taken < 128 * _MIB


@pytest.mark.parametrize(
    ("status", "headers", "body", "told"),
    [
        (200, {**_JSON, **_GZIP}, gzip.compress(b"{}"), "gzip"),
        (404, {**_PROBLEM, **_GZIP}, gzip.compress(b'{"code": "packed", "detail": "x"}'), "404"),
        (200, _JSON, b"[" * _MIB, None),
        (404, _PROBLEM, b"[" * _MIB, None),
    ],
    ids=["packed", "packed problem", "brackets", "problem of brackets"],
)
async def test_what_has_to_be_unpacked_fails(
    status: int, headers: dict[str, str], body: bytes, told: str | None
) -> None:
    with lying(says=lambda _target: (status, headers, [body])) as liar:
        async with client(liar.url) as made:
            with pytest.raises(BadAnswer, match=told):
                await made.usage()


@pytest.mark.parametrize(
    "cursors",
    [["a"], ["a", "b", "c"], ["x" * 100_000], ["\ud800"]],
    ids=["same", "circle", "long", "no text"],
)
async def test_a_list_that_leads_in_a_circle_ends(cursors: list[str]) -> None:
    answers = itertools.cycle([page(each, "f") for each in cursors])
    with lying(says=lambda _target: (200, _JSON, [next(answers)])) as liar:
        async with client(liar.url) as made:
            with pytest.raises(BadAnswer):
                [file async for file in made.files()]
            with pytest.raises(BadAnswer):
                await made.named("f")


async def test_a_list_of_nothing_ends_and_another_goes_on() -> None:
    numbers = itertools.count()
    with lying(says=lambda _target: (200, _JSON, [page(str(next(numbers)))])) as liar:
        async with client(liar.url) as made:
            with pytest.raises(BadAnswer, match="no end"):
                [file async for file in made.files()]
    assert next(numbers) == 1
    # One goes on as long as it leads on.
    pages = [page("1", "a"), page("2", "a", "b"), page(None)]
    with lying(says=lambda _target: (200, _JSON, [pages.pop(0)])) as liar:
        async with client(liar.url) as made:
            assert [file.name async for file in made.files()] == ["a", "a", "b"]
