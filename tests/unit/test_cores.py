"""What a server process takes of its machine: which core it shares, memory, and open files."""

import gc
import logging
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from uploader.http.server.connections import collect_seldom, connection_limits
from uploader.runtime import cores
from uploader.runtime.cores import Patience, SharedCore, least_shared, quotas, run_anywhere, share_a_core
from uploader.settings import Settings


@pytest.fixture(autouse=True)
def _nothing_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_everywhere", set())
    monkeypatch.setattr(cores, "_anywhere", set())


def in_a_thread(work: Callable[[], int | None]) -> tuple[int | None, set[int], set[int]]:
    """What it returns, and the cores of its thread then, and after `run_anywhere`: those of this thread stay."""

    def run() -> tuple[int | None, set[int], set[int]]:
        returned, narrowed = work(), os.sched_getaffinity(0)
        run_anywhere()
        return returned, narrowed, os.sched_getaffinity(0)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


@pytest.mark.parametrize(("shared", "core"), [([], 2), ([2], 3), ([3], 2), ([2, 3], 2), ([2, 2, 3], 3), ([0, 0, 2], 3)])
def test_the_core_is_the_first_of_those_that_the_fewest_share(shared: list[int], core: int) -> None:
    assert least_shared({3, 2}, shared) == core


def test_a_thread_that_shares_a_core_can_run_anywhere_again(tmp_path: Path, two_cores: set[int]) -> None:
    core, narrowed, widened = in_a_thread(lambda: share_a_core(tmp_path))
    assert narrowed == {core} < widened == os.sched_getaffinity(0)


def test_a_core_is_let_go_while_a_neighbour_wants_it_and_taken_again_when_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_cores: set[int]
) -> None:
    def look_until(shared: SharedCore, done: Callable[[int], bool]) -> set[int]:
        for _ in range(600):
            until = time.monotonic() + 0.1
            while time.monotonic() < until:
                pass
            shared._look()
            if done(len(os.sched_getaffinity(0))):
                break
        return os.sched_getaffinity(0)

    def run() -> tuple[set[int], ...]:
        hog = f"import os\nos.sched_setaffinity(0, {{{share_a_core(tmp_path)}}})\nwhile True: pass"
        shared = SharedCore()
        with ThreadPoolExecutor(1) as short, ThreadPoolExecutor(1, initializer=run_anywhere) as long:
            beside = [pool.submit(threading.get_native_id).result() for pool in (short, long)]
            neighbour = subprocess.Popen([sys.executable, "-c", hog])
            try:
                released = look_until(shared, lambda cores: cores > 1) & os.sched_getaffinity(beside[0])
            finally:
                neighbour.kill()
                neighbour.wait()
            monkeypatch.setattr(cores, "_QUIET", 2.0)  # what else runs on this machine may keep it as busy
            taken = look_until(shared, lambda cores: cores == 1)
            return released, taken, *map(os.sched_getaffinity, beside)

    with ThreadPoolExecutor(1) as thread:
        released, taken, short, long = thread.submit(run).result()
    assert released == long == os.sched_getaffinity(0)
    assert len(taken) == 1
    assert short == taken


BUSY, FREE = (0.9, 0.5), (0.9, 0.0)


@pytest.mark.parametrize(
    ("looks", "changes"),
    [
        ([BUSY] * 2, 1),
        ([BUSY, FREE] * 5, 0),
        ([(0.9, 0.2)] * 100, 0),
        ([BUSY] * 2 + [(0.9, 0.2)] * 100, 1),
        ([BUSY] * 2 + [(0.0, 0.0)] * 100, 1),
        ([BUSY] * 2 + [FREE] * 9, 1),
        ([BUSY] * 2 + [FREE] * 10, 2),
        (([BUSY] * 2 + [FREE] * 10) * 2, 3),
        (([BUSY] * 2 + [FREE] * 20) * 2, 4),
        (([BUSY] * 2 + [FREE] * 100) * 9, 18),
    ],
)
def test_a_decision_takes_looks_in_a_row_and_more_after_one_in_vain(
    looks: list[tuple[float, float]], changes: int
) -> None:
    patience = Patience()
    assert sum(patience.note(*look) for look in looks) == changes


@pytest.mark.parametrize("quota", [0.5, 1.0, 1.5])
def test_under_a_quota_no_core_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_cores: set[int], quota: float
) -> None:
    monkeypatch.setattr(cores, "quotas", lambda: iter([1024.0, quota]))
    core, narrowed, _ = in_a_thread(lambda: share_a_core(tmp_path))
    assert core is None
    assert narrowed == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000"}, []),
        ("0::/a/b\n", {"a/b/cpu.max": "50000 100000"}, [0.5]),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 200000"}, [1.5]),
        ("0::/\n", {"cpu.max": "150000 100000"}, [1.5]),
        ("0::/not/seen/from/within\n", {"cpu.max": "200000 100000"}, [2.0]),
        ("0::/../above\n", {"cpu.max": "200000 100000"}, [2.0]),
        (
            "3:cpu,cpuacct:/a\n1:name=systemd:/\n",
            {"cpu/a/cpu.cfs_quota_us": "25000", "cpu/a/cpu.cfs_period_us": "100000"},
            [0.25],
        ),
        ("3:cpu:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, []),
        ("4:cpuset:/a\n", {"cpu/a/cpu.cfs_quota_us": "25000", "cpu/a/cpu.cfs_period_us": "100000"}, []),
        ("0::/a\n", {"a/cpu.max": "unheard of"}, []),
        ("0::/a\n", {}, []),
        (None, {}, []),
    ],
)
def test_the_quotas_are_those_of_the_group_and_all_above_it(
    tmp_path: Path, groups: str | None, files: dict[str, str], found: list[float]
) -> None:
    """On files as the kernel has them: to make groups takes rights that a test has seldom."""
    if groups is not None:
        (tmp_path / "proc" / "self").mkdir(parents=True)
        (tmp_path / "proc" / "self" / "cgroup").write_text(groups)
    for name, content in files.items():
        path = tmp_path / "cgroups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    assert list(quotas(tmp_path / "proc", tmp_path / "cgroups")) == found


def test_garbage_is_looked_for_seldom_but_it_is_and_not_in_what_was_there_at_the_start() -> None:
    before, at_start = gc.get_threshold(), gc.get_freeze_count()
    try:
        collect_seldom()
        assert gc.get_freeze_count() > at_start
        looks = gc.get_stats()[0]["collections"]
        kept = [list[None]() for _ in range(5000)]
        assert gc.get_stats()[0]["collections"] == looks
        kept += [[] for _ in range(50_000)]
        assert gc.get_stats()[0]["collections"] > looks
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limited", "raised_to", "connections", "reserved"),
    [
        ((1024, 1024), None, 192, 128),
        ((1024, 4096), 4096, 1536, 512),
        ((1024, 524_288), 65_536, 4096, 1024),
        ((1024, INFINITE), 65_536, 4096, 1024),
        ((100_000, 524_288), None, 4096, 1024),
        ((INFINITE, INFINITE), None, 4096, 1024),
        ((100, 100), None, 1, 12),
    ],
)
def test_the_limit_on_open_files_is_raised_and_kept(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limited: tuple[int, int],
    raised_to: int | None,
    connections: int,
    reserved: int,
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _what: limited)
    monkeypatch.setattr(resource, "setrlimit", lambda _what, limits: asked.append(limits))
    limits = connection_limits(Settings(max_connections=4096))
    assert asked == ([] if raised_to is None else [(raised_to, limited[1])])
    assert (limits.max_connections, limits.reserved_connections) == (connections, reserved)
    assert any(record.levelno == logging.WARNING for record in caplog.records) == (connections < 4096)
