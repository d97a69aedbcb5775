"""Hashing in lanes: as hashlib's and OpenSSL's, whatever is hashed beside it, whoever hashes at the same time."""

import ctypes
import hashlib
import os
import random
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.process import run_program
from uploader.lanes import kernel
from uploader.lanes.build import compile_kernel
from uploader.lanes.kernel import LAYOUTS, Algorithm, Kernel, ends, is_right, kernels
from uploader.runtime import cores
from uploader.storage import hashes
from uploader.storage.base import Digests
from uploader.storage.hashes import Gathering, Job
from uploader.storage.store import Threads

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "uploader/lanes/lanes.c"
CONTENT = bytearray(random.Random(0).randbytes(2 << 20))
MD5, SHA256 = LAYOUTS["md5"], LAYOUTS["sha256"]
# RFC 1321, A.5.
RFC_1321 = {
    "": "d41d8cd98f00b204e9800998ecf8427e",
    "a": "0cc175b9c0f1b6a831c399e269772661",
    "abc": "900150983cd24fb0d6963f7d28e17f72",
    "message digest": "f96b697d7cb7938d525a2f31aaf161d0",
    "abcdefghijklmnopqrstuvwxyz": "c3fcd3d76192e4007dfb496cca67e13b",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789": "d174ab98d277d9f5a5611c2c9f419d9f",
    "1234567890" * 8: "57edf4a22be3c955ac49da2e2107b67a",
}
# Examples of NIST (csrc.nist.gov/projects/cryptographic-standards-and-guidelines/example-values), and of none.
FIPS_180_4 = {
    "": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "abc": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq": (
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
    ),
    "a" * 1_000_000: "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
}
VECTORS: dict[Algorithm, dict[str, str]] = {"md5": RFC_1321, "sha256": FIPS_180_4}
OPENSSL: dict[Algorithm, hashes._Algorithm] = {"md5": hashes._MD5, "sha256": hashes._SHA256}
needs_compiler = pytest.mark.usefixtures("library")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None and os.environ.get("CI") != "true":
        pytest.skip("no compiler: apt-get install gcc libc6-dev")
    path = tmp_path_factory.mktemp("kernel") / "liblanes.so.1"
    compile_kernel(SOURCE, path)
    return path


@pytest.fixture
def best(library: Path) -> Kernel:
    return next(kernels(library))


def digest(algorithm: Algorithm, content: bytes | bytearray | memoryview) -> bytes:
    return hashlib.new(algorithm, content, usedforsecurity=False).digest()


def md5(content: bytes | bytearray | memoryview) -> bytes:
    return digest("md5", content)


def test_each_kernel_of_this_processor_hashes_as_its_standard_says_and_around_blocks(library: Path) -> None:
    found = list(kernels(library))
    assert found
    for each in found:
        assert is_right(each)
        vectors, new_context = VECTORS[each.algorithm], LAYOUTS[each.algorithm].new_context
        contexts = [new_context() for _ in vectors]
        each.update([(context, [memoryview(text.encode())]) for context, text in zip(contexts, vectors, strict=True)])
        assert [end.hex() for end in ends(each, contexts)] == list(vectors.values())
        lengths = [*range(200), *(64 * blocks + more for blocks in (15, 16, 17, 1000) for more in (-9, -8, -1, 0, 1))]
        contexts = [new_context() for _ in lengths]
        jobs = [(context, [memoryview(CONTENT)[:n]]) for context, n in zip(contexts, lengths, strict=True)]
        each.update(jobs)
        assert ends(each, contexts) == [digest(each.algorithm, CONTENT[:n]) for n in lengths]


@pytest.mark.parametrize("algorithm", LAYOUTS)
@given(data=st.data())
def test_any_contents_and_cuts_are_gone_on_with_by_openssl_and_by_any_kernel(
    library: Path, algorithm: Algorithm, data: st.DataObject
) -> None:
    found = [each for each in kernels(library) if each.algorithm == algorithm]
    if not found:  # of SHA-256 only some processors have one
        return
    layout, openssl = LAYOUTS[algorithm], hashes._library()
    assert openssl is not None
    lengths = data.draw(st.lists(st.integers(0, 700), min_size=1, max_size=40))
    states, done = [layout.new_context().raw for _ in lengths], [0] * len(lengths)
    for by in data.draw(st.lists(st.sampled_from([None, *found]), max_size=5)) + found:
        cuts = data.draw(st.lists(st.integers(0, 150), max_size=4))
        jobs = []
        for number, state in enumerate(states):
            pieces = []
            for cut in cuts if by is not found[-1] else [700]:
                end = min(done[number] + cut, lengths[number])
                pieces.append(memoryview(CONTENT if number % 2 else bytes(CONTENT[:700]))[done[number] : end])
                done[number] = end
            jobs.append((ctypes.create_string_buffer(state, layout.context.size), pieces))
        if by is not None:
            by.update(jobs)
        else:
            for context, pieces in jobs:
                alone = hashes._OpenSslHash(openssl, OPENSSL[algorithm], context.raw)
                for piece in filter(len, pieces):
                    alone.update(piece)
                context.raw = alone.context.raw
        states = [context.raw for context, _ in jobs]
    assert [hashes._OpenSslHash(openssl, OPENSSL[algorithm], state).hexdigest() for state in states] == [
        digest(algorithm, CONTENT[:n]).hex() for n in done
    ]


def test_the_length_of_a_long_content_is_counted_beyond_32_bits(library: Path) -> None:
    bits = (1 << 32) - 8 * 64
    for each in kernels(library):
        layout = LAYOUTS[each.algorithm]
        state = layout.context.pack(*layout.begin, bits, b"", 0, *layout.more)
        context = ctypes.create_string_buffer(state, len(state))
        alone = hashes._OpenSslHash(hashes._library(), OPENSSL[each.algorithm], state)  # type: ignore[arg-type]
        each.update([(context, [memoryview(CONTENT)[:100]])])
        alone.update(memoryview(CONTENT)[:100])
        assert layout.counted(context) == (bits + 800, 36)
        assert bits + 800 > 1 << 32
        assert ends(each, [context]) == [bytes.fromhex(alone.hexdigest())]


@needs_compiler
def test_without_a_library_or_with_a_wrong_one_nothing_is_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = shutil.copytree(SOURCE.parent, tmp_path / "source")
    for name, constant in (("md5.h", "0xd76aa478"), ("sha256.h", "0x428a2f98")):
        steps = directory / name
        wrong = steps.read_text().replace(constant, constant[:-1] + "9")
        assert wrong != steps.read_text()
        steps.write_text(wrong)
    compile_kernel(directory / "lanes.c", tmp_path / "wrong.so")
    (tmp_path / "text.so").write_text("no library")
    for name in ("wrong.so", "text.so", "missing.so"):
        monkeypatch.setattr(kernel, "LIBRARY", tmp_path / name)
        kernel.kernel.cache_clear()
        try:
            assert [kernel.in_force(algorithm) for algorithm in LAYOUTS] == [("none", 1)] * 2, name
        finally:
            kernel.kernel.cache_clear()


@needs_compiler
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    """In buffers that end where their contents do, so that a byte read too far is seen."""
    options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-fPIC", "-shared", "-Wno-psabi"]
    subprocess.run(["gcc", *options, "-o", tmp_path / "checked.so", SOURCE], check=True)
    found = run_program(["gcc", "-print-file-name=libasan.so"])
    program = """
import ctypes, hashlib, random, sys
from pathlib import Path
from uploader.lanes.kernel import LAYOUTS, ends, is_right, kernels
draw, tried = random.Random(0), 0
for kernel in kernels(Path(sys.argv[1])):
    assert is_right(kernel)
    for _ in range(60):
        contents = [draw.randbytes(draw.randrange(1, 700)) for _ in range(draw.randrange(1, 40))]
        contexts = [LAYOUTS[kernel.algorithm].new_context() for _ in contents]
        kernel.update([(context, [memoryview((ctypes.c_char * len(each)).from_buffer_copy(each))])
                       for context, each in zip(contexts, contents)])
        assert ends(kernel, contexts) == [hashlib.new(kernel.algorithm, each).digest() for each in contents]
        tried += 1
print(tried)
"""
    environment = {"ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc", "LD_PRELOAD": found.stdout.strip()}
    ran = run_program(
        [sys.executable, "-c", program, tmp_path / "checked.so"], env=os.environ | environment, cwd=ROOT, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert int(ran.stdout) >= 60


# Who hashes at the same time


class Company:
    """Jobs of contents, each handed over by a thread of its own, while the only core is taken until all wait."""

    def __init__(self, best: Kernel, count: int) -> None:
        self.batches: list[int] = []
        self.gathering = Gathering({"md5": self}, 1)  # type: ignore[dict-item]
        self.lanes = best.lanes
        self.contexts = [MD5.new_context() for _ in range(count)]
        self.sha256s = [hashlib.sha256() for _ in range(count)]
        self._kernel = best
        self.fails: BaseException | None = None

    def update(self, jobs: Sequence[tuple[kernel.Context, Sequence[memoryview]]]) -> None:
        self.batches.append(len(jobs))
        if self.fails is not None:
            raise self.fails
        self._kernel.update(jobs)

    def run(self, others: Sequence[BaseException | None]) -> list["Future[None]"]:
        """Each has an MD5 that others may do, a SHA-256 of its own, and what is beside them, which may fail."""

        def beside(number: int) -> None:
            error = others[number]
            if error is not None:
                raise error

        def advance(number: int) -> None:
            context, pieces = self.contexts[number], [memoryview(CONTENT)[: 1000 * number]]
            jobs = [
                Job("sha256", SHA256.new_context(), pieces, lambda: self.sha256s[number].update(pieces[0])),
                Job("md5", context, pieces, lambda: self.update([(context, pieces)])),
            ]
            self.gathering.advance(jobs, lambda: beside(number), lambda: None)

        with ThreadPoolExecutor(len(others)) as pool, self.gathering._free_cores:
            futures = [pool.submit(advance, number) for number in range(len(others))]
            while len(self.gathering._waiting) < 2 * len(others):
                threading.Event().wait(0.001)
        return futures


@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_the_first_who_has_a_core_hashes_for_all_who_wait(best: Kernel, count: int) -> None:
    company = Company(best, count)
    for future in company.run([None] * count):
        future.result()
    assert company.batches == [each for each in (min(count, best.lanes), count - best.lanes) if each > 0]
    contents = [CONTENT[: 1000 * number] for number in range(count)]
    assert ends(best, company.contexts) == [md5(content) for content in contents]
    assert [each.digest() for each in company.sha256s] == [digest("sha256", content) for content in contents]


def test_an_error_of_one_is_nobody_elses(best: Kernel) -> None:
    company = Company(best, 6)
    failing = OSError("gone")
    futures = company.run([None, None, failing, None, failing, None])
    assert [future.exception() for future in futures] == [None, None, failing, None, failing, None]
    ended = ends(best, company.contexts)
    assert all(ended[number] == md5(CONTENT[: 1000 * number]) for number in (0, 1, 3, 5))
    assert not company.gathering._waiting


def test_if_the_kernel_fails_all_of_the_batch_know_and_nobody_waits_for_ever(best: Kernel) -> None:
    company = Company(best, 4)
    company.fails = MemoryError()
    errors = [future.exception() for future in company.run([None] * 4)]
    assert all(isinstance(error, (MemoryError, RuntimeError)) for error in errors)
    assert company.batches == [4]


def test_who_has_cores_enough_hashes_two_of_them_side_by_side(best: Kernel) -> None:
    told: list[str] = []
    kinds: Sequence[Algorithm] = ("sha256", "md5")
    jobs = [Job(each, LAYOUTS[each].new_context(), [memoryview(CONTENT)], partial(told.append, each)) for each in kinds]
    for core_count, count in ((2, 2), (1, 2), (2, 1)):
        gathering = Gathering({"md5": best}, core_count)
        gathering.advance(jobs[:count], partial(told.append, "beside"), partial(told.append, "side by side"))
    assert told == ["side by side", "sha256", "md5", "beside", "sha256", "beside"]


@pytest.fixture(params=["in lanes", "without"])
def threads(request: pytest.FixtureRequest, library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Threads]:
    """Those of a store, with two cores."""
    found = {each.algorithm: each for each in reversed(list(kernels(library)))} if request.param == "in lanes" else {}
    monkeypatch.setattr(hashes, "kernel", found.get)
    monkeypatch.setattr(cores, "count", lambda: 2)
    hashes._gathering.cache_clear()
    threads = Threads()
    yield threads
    threads.shutdown()
    threads.digesting.executor.shutdown()
    hashes._gathering.cache_clear()


def test_many_prefixes_at_once_have_the_digests_of_hashlib(threads: Threads) -> None:
    many = [hashes.PrefixHashes(with_md5=number % 5 != 0) for number in range(24)]

    def follow(number: int) -> None:
        length = 300_000 + number * 20_000
        for start in range(0, len(CONTENT) - number, length):
            cut = memoryview(CONTENT)[start : min(start + length, len(CONTENT) - number)]
            pieces = list(filter(len, (cut[:7], cut[7:100_000], cut[100_000:])))
            many[number].update_by(lambda pieces=pieces: pieces, len(cut))  # type: ignore[misc]

    for future in [threads.digesting.executor.submit(follow, number) for number in range(len(many))]:
        future.result()
    for number, each in enumerate(many):
        content = CONTENT[: len(CONTENT) - number]
        known = md5(content).hex() if number % 5 else None
        assert each.digests() == Digests(known, hashlib.sha256(content).hexdigest())


def test_a_fork_while_somebody_gathers_leaves_no_lock_behind(library: Path) -> None:
    program = """
import os, pathlib, sys
from uploader.runtime import cores
from uploader.lanes import kernel
from uploader.storage import hashes
kernel.LIBRARY = pathlib.Path(sys.argv[1])
found = hashes._gathering()
with found._lock:
    child = os.fork()
    if not child:
        os._exit(hashes._gathering() is found or not hashes._gathering()._lock.acquire(timeout=1))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ran = run_program([sys.executable, "-c", program, library], cwd=ROOT)
    assert ran.stdout == "0\n"


# The wheel


@needs_compiler
@pytest.mark.parametrize("compiler", ["gcc", "false", "/nowhere/cc"])
def test_the_wheel_has_a_kernel_where_it_can_be_compiled(tmp_path: Path, compiler: str) -> None:
    built = run_program(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        env=os.environ | {"CC": compiler},
        cwd=ROOT,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as files:
        names = [name for name in files.namelist() if name.startswith("uploader/lanes/")]
        (tags,) = (name for name in files.namelist() if name.endswith(".dist-info/WHEEL"))
        is_pure = b"Root-Is-Purelib: true" in files.read(tags)
    python = [f"uploader/lanes/{name}.py" for name in ("__init__", "kernel")]
    if compiler == "gcc":
        assert sorted(names) == sorted([*python, "uploader/lanes/liblanes.so.1"])
        assert (is_pure, "-py3-none-manylinux_2_17_" in wheel.name) == (False, True)
    else:
        assert (sorted(names), is_pure) == (python, True)
        assert wheel.name.endswith("-py3-none-any.whl")
        assert "Hashing in lanes is left out" in built.stdout + built.stderr
