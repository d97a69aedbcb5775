"""Waiting for stores as a request does, in a test."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from uploader.runtime.wait_budget import WaitBudget, wait_budget_of_request


@contextmanager
def as_request(*, waited_seconds: float = 0.0) -> Iterator[WaitBudget]:
    """Within, this task serves a request that has waited so long for silent stores."""
    own = WaitBudget()
    if waited_seconds:
        own.note(time.monotonic() - waited_seconds, 0)
    token = wait_budget_of_request.set(own)
    try:
        yield own
    finally:
        wait_budget_of_request.reset(token)
