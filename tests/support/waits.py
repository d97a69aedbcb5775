"""Waiting for stores as a request does, in a test."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from uploader.patience import Patience, patience_of_request


@contextmanager
def as_request(*, waited_seconds: float = 0.0) -> Iterator[Patience]:
    """Within, this task serves a request that has waited so long for silent stores."""
    own = Patience()
    if waited_seconds:
        own.note(time.monotonic() - waited_seconds, 0)
    token = patience_of_request.set(own)
    try:
        yield own
    finally:
        patience_of_request.reset(token)
