"""A worker that dies at a crash point: as a kill ends it, only that the test lives on and may go on as another worker."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from uploader.runtime import crashpoints


class Death(BaseException):
    """The worker ended here: what was done before stands, and nothing is done after it."""


@contextmanager
def dying(at: int | None) -> Iterator[list[str]]:
    """Let whoever passes the `at`th crash point from now on end there; None: nobody. Yield the points that are passed."""
    passed: list[str] = []

    def pass_or_die(name: str) -> None:
        passed.append(name)
        if len(passed) == at:
            raise Death(name)

    modules = [module for name, module in sys.modules.items() if name.startswith("uploader.")]
    users = [module for module in modules if getattr(module, "crash_point", None) is crashpoints.crash_point]
    real = crashpoints.crash_point
    for module in users:
        vars(module)["crash_point"] = pass_or_die
    try:
        yield passed
    finally:
        for module in users:
            vars(module)["crash_point"] = real
