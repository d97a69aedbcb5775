"""Which core is shared, and where none is."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from uploader import cores
from uploader.cores import least_shared, quotas, run_anywhere, share_a_core


@pytest.fixture(autouse=True)
def _nothing_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_everywhere", set())


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
