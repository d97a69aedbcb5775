"""How far one has to go to follow a request, by the tracer in `benchmarks/path_of_a_chunk.py`."""

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The files of the package that each may pass.
MOST_FILES = {"chunk": 26, "patch": 35, "whole": 42, "opening": 39}
# Of the calls of the same bytes as a chunk.
MOST_CALLS_OF_A_PATCH = 1.3


Figures = dict[str, dict[str, int]]


def traced() -> Figures:
    tracer = [sys.executable, "-m", "benchmarks.path_of_a_chunk", "--json"]
    done = subprocess.run(tracer, cwd=ROOT, capture_output=True, text=True, check=True)
    found: Figures = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def figures() -> Figures:
    return traced()


def test_a_request_passes_few_files(figures: Figures) -> None:
    assert {name: figures[name]["files"] for name in MOST_FILES if figures[name]["files"] > MOST_FILES[name]} == {}


def test_an_append_costs_little_more_than_the_same_chunk(figures: Figures) -> None:
    """On a busy machine a body comes in more pieces, which are more calls: then it is traced again."""
    for each in chain([figures], (traced() for _ in range(5))):
        if each["patch"]["calls"] <= MOST_CALLS_OF_A_PATCH * each["chunk"]["calls"]:
            return
    pytest.fail(str(each))
