"""`uploader` with a server that takes chunks in and puts them nowhere: `python -m benchmarks.ingest.hollow serve`.

All that HTTP asks for is done (who calls, what is sent, in whose budget, the line in the log), and nothing of what follows.
"""

from typing import Any
from unittest.mock import patch

from uploader import bootstrap
from uploader.accounting.pending import Outcome, Pending, RecordResult
from uploader.bootstrap import application
from uploader.cli import main
from uploader.http.app import Application
from uploader.storage.local.store import LocalStore


class _Held:
    """A chunk that is nowhere."""

    written = True

    def release(self) -> None:
        pass


async def _hold(*_: Any) -> _Held:
    return _Held()


async def _record(*_: Any) -> RecordResult:
    return RecordResult(Outcome.RECORDED, received=1, chunks=1, chunk_count=2, settled=False)


def create_app() -> Application:
    """As `bootstrap.create_app`."""
    patch.object(LocalStore, "hold_chunk", _hold).start()
    patch.object(Pending, "record_chunk", _record).start()
    return bootstrap.create_app()


if __name__ == "__main__":
    # By its name, because the server processes of `--workers` import it.
    with patch.object(application, "APPLICATION", "benchmarks.ingest.hollow:create_app"):
        main()
