"""Both hashes of a growing prefix: equal to hashlib's for every way of cutting the content, and of carrying the state on."""

import _hashlib
import ctypes
import hashlib
import random
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.process import run_program
from uploader.storage import hashes
from uploader.storage.base import Digests
from uploader.storage.hashes import STATE_BYTES, PrefixHashes, states_are_portable

CONTENT = random.Random(0).randbytes(3 << 20)


def expected(content: bytes) -> Digests:
    return Digests(hashlib.md5(content).hexdigest(), hashlib.sha256(content).hexdigest())


@pytest.fixture
def without_states(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Python that does not let one at OpenSSL's states."""
    monkeypatch.setattr(_hashlib, "__file__", "/nowhere/_hashlib.so", raising=False)
    hashes._library.cache_clear()
    yield
    hashes._library.cache_clear()


def hashed_of(content: bytes | bytearray, *, with_md5: bool = True) -> PrefixHashes:
    hashed = PrefixHashes(with_md5=with_md5)
    hashed.update(memoryview(content))
    return hashed


def carried_on(hashed: PrefixHashes) -> PrefixHashes:
    restored = PrefixHashes.restore(hashed.position, hashed.state())
    assert restored is not None
    return restored


@given(cuts=st.lists(st.tuples(st.integers(0, 1000), st.booleans()), max_size=12), writable=st.booleans())
def test_any_cuts_and_changes_of_hands_give_what_hashlib_gives(cuts: list[tuple[int, bool]], writable: bool) -> None:
    content = memoryview(bytearray(CONTENT[:6000]) if writable else CONTENT[:6000])
    hashed, start = PrefixHashes(), 0
    for length, changes_hands in cuts:
        piece = content[start : start + length]
        hashed.update(piece)
        start += len(piece)
        if changes_hands:
            hashed = carried_on(hashed)
        assert hashed.position == start
        assert hashed.digests() == expected(CONTENT[:start]), "asking for the digests ends nothing"
    hashed.update(content[start:])
    assert hashed.digests() == expected(CONTENT[:6000])
    assert (states_are_portable(), len(hashed.state())) == (True, STATE_BYTES), "this Python lets one at the states"


@pytest.mark.parametrize("length", [0, 1, 1000, len(CONTENT)])
def test_sha256_alone_is_carried_on_alone(length: int) -> None:
    hashed = hashed_of(CONTENT[:length], with_md5=False)
    assert hashes.is_without_md5(hashed.state())
    hashed = carried_on(hashed)
    hashed.update(memoryview(CONTENT)[length:])
    assert (hashed.has_md5, hashed.position) == (False, len(CONTENT))
    assert hashed.digests() == Digests(None, expected(CONTENT).sha256)


@pytest.mark.parametrize("with_md5", [True, False])
@pytest.mark.parametrize("states", [True, False])
def test_a_copy_goes_its_own_way(states: bool, with_md5: bool, request: pytest.FixtureRequest) -> None:
    if not states:
        request.getfixturevalue("without_states")
    hashed = hashed_of(CONTENT[:1000], with_md5=with_md5)
    copied = hashed.copy()
    copied.update(memoryview(CONTENT)[1000:3000])
    hashed.update(memoryview(CONTENT)[1000:1001])
    for each, length in ((hashed, 1001), (copied, 3000)):
        known = expected(CONTENT[:length])
        assert (each.position, each.digests()) == (length, known if with_md5 else Digests(None, known.sha256))


def test_a_state_goes_on_in_another_process() -> None:
    hashed = hashed_of(CONTENT[:1001])
    program = (
        "import sys; from uploader.storage.hashes import PrefixHashes;"
        "hashed = PrefixHashes.restore(1001, bytes.fromhex(sys.argv[1]));"
        "hashed.update(memoryview(b'the rest')); digests = hashed.digests(); print(digests.md5, digests.sha256)"
    )
    command = [sys.executable, "-c", program, hashed.state().hex()]
    printed = run_program(command).stdout.split()
    assert Digests(*printed) == expected(CONTENT[:1001] + b"the rest")
    # Megabytes at once.
    hashed = carried_on(hashed_of(bytearray(CONTENT)))
    hashed.update(memoryview(CONTENT))
    assert hashed.digests() == expected(CONTENT + CONTENT)


def test_two_that_go_on_from_one_state_do_not_touch_each_other_and_from_no_state_nobody_goes_on() -> None:
    hashed = hashed_of(CONTENT[:100])
    first, second = carried_on(hashed), carried_on(hashed)
    first.update(memoryview(CONTENT)[100:200])
    second.update(memoryview(b"else"))
    contents = [CONTENT[:200], CONTENT[:100] + b"else", CONTENT[:100]]
    assert [each.digests() for each in (first, second, hashed)] == [expected(content) for content in contents]
    for state in (b"", b"short", bytes(STATE_BYTES + 1)):
        assert PrefixHashes.restore(1, state) is None


@pytest.mark.usefixtures("without_states")
def test_without_the_states_hashlib_computes_and_nothing_is_carried_on() -> None:
    assert not states_are_portable()
    hashed, alone = hashed_of(CONTENT), hashed_of(CONTENT, with_md5=False)
    assert (hashed.digests(), hashed.state()) == (expected(CONTENT), b"")
    assert PrefixHashes.restore(0, bytes(STATE_BYTES)) is None
    assert alone.digests() == Digests(None, expected(CONTENT).sha256)
    assert not hashes.is_without_md5(alone.state())


class Impostor:
    """OpenSSL, but for the functions that are given."""

    def __init__(self, **functions: object) -> None:
        self._real = ctypes.CDLL(_hashlib.__file__)
        self._functions = functions

    def __getattr__(self, name: str) -> object:
        return self._functions.get(name) or getattr(self._real, name)

    __getitem__ = __getattr__


def _init_of_another_layout(context: ctypes.Array[ctypes.c_char]) -> int:
    ctypes.CDLL(_hashlib.__file__).SHA256_Init(context)
    context[36] = b"\x08"
    return 1


@pytest.mark.parametrize(
    "functions",
    [
        {"OpenSSL_version_num": lambda: 0x1_01_01_17_0},
        {"MD5_Init": lambda *_: 0},
        {"MD5_Update": lambda *_: 1},
        {"SHA256_Final": lambda *_: 1},
        {"SHA256_Init": _init_of_another_layout},
    ],
    ids=lambda functions: next(iter(functions)),
)
def test_a_library_that_does_other_things_is_not_believed(
    functions: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    impostor = Impostor(**functions)
    monkeypatch.setattr(hashes, "ctypes", SimpleNamespace(**vars(ctypes) | {"CDLL": lambda _: impostor}))
    hashes._library.cache_clear()
    try:
        assert not states_are_portable()
        assert hashed_of(CONTENT).digests() == expected(CONTENT)
    finally:
        monkeypatch.undo()
        hashes._library.cache_clear()
