"""How far one has to go to follow a request, by the tracer in `benchmarks/path_of_a_chunk.py`."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The files of the package that each may pass.
MOST_FILES = {"chunk": 25, "patch": 31, "whole": 41, "opening": 39}
# Of the calls of the same bytes as a chunk.
MOST_CALLS_OF_A_PATCH = 1.3


Figures = dict[str, dict[str, int]]


def traced() -> Figures:
    tracer = [sys.executable, "-m", "benchmarks.path_of_a_chunk", "--json"]
    done = subprocess.run(tracer, cwd=ROOT, capture_output=True, text=True, check=True)
    found: Figures = json.loads(done.stdout)
    return found


def test_a_request_passes_few_files_and_an_append_costs_little_more_than_a_chunk() -> None:
    """On a busy machine a body comes in more pieces, which take other ways: then it is traced again."""
    assert any(is_short(traced()) for _ in range(5))


def is_short(figures: Figures) -> bool:
    print(figures)
    few = all(figures[name]["files"] <= most for name, most in MOST_FILES.items())
    return few and figures["patch"]["calls"] <= MOST_CALLS_OF_A_PATCH * figures["chunk"]["calls"]
