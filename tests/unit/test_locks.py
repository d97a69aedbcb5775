"""Locks of open file descriptions: one descriptor is one holder, also within one process."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.process import run_program
from uploader.storage.disk import is_locked, try_lock

Open = Callable[[], int]


@pytest.fixture
def open_file(tmp_path: Path) -> Iterator[Open]:
    """Opens one file again and again, each time with a descriptor of its own."""
    path = tmp_path / "file"
    path.touch()
    descriptors: list[int] = []

    def opened() -> int:
        descriptors.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        return descriptors[-1]

    yield opened
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_range_is_of_one_descriptor_and_a_look_takes_nothing(open_file: Open) -> None:
    first, second = open_file(), open_file()
    assert not is_locked(second, 0, 8)
    for _ in range(2):
        assert try_lock(first, 0, 8)
    assert [is_locked(each, 7, 1) for each in (first, second)] == [False, True]
    assert [is_locked(second, 8, 1), try_lock(second, 7, 1)] == [False, False]
    assert try_lock(second, 8, 8), "ranges that do not touch are independent"
    # A length of 0 reaches to the end and beyond.
    assert try_lock(first, 128, 0)
    assert [try_lock(second, start, 8) for start in (10**9, 120)] == [False, True]


def test_closing_the_descriptor_gives_up_all_and_closing_another_nothing(tmp_path: Path, open_file: Open) -> None:
    own, other = os.open(tmp_path / "file", os.O_RDWR), open_file()
    assert try_lock(own, 0, 8)
    assert try_lock(own, 100, 8)
    os.close(os.open(tmp_path / "file", os.O_RDWR))
    assert not try_lock(other, 0, 8)
    os.close(own)
    assert try_lock(other, 0, 0)


def test_another_process_is_kept_out_and_gets_the_lock_afterwards(tmp_path: Path) -> None:
    program = (
        "import os, sys; from uploader.storage.disk import try_lock;"
        "print(try_lock(os.open(sys.argv[1], os.O_RDWR), 0, 8))"
    )

    def ask() -> str:
        command = [sys.executable, "-c", program, str(tmp_path / "file")]
        return run_program(command).stdout.strip()

    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    assert try_lock(descriptor, 0, 8)
    assert ask() == "False"
    os.close(descriptor)
    assert ask() == "True"


def test_any_other_error_is_raised(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "file", os.O_RDONLY | os.O_CREAT)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            try_lock(descriptor, 0, 8)  # not open for writing
    finally:
        os.close(descriptor)
