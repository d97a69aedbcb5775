"""`uploader` with a server that charges nobody and lets nobody wait: `python -m benchmarks.ingest.unmetered serve`.

This is no setting of the product: it is for telling what the meter costs.
"""

from unittest.mock import patch

from uploader import bootstrap
from uploader.bootstrap import server
from uploader.cli import main
from uploader.http.app import Application


def create_app() -> Application:
    """As `bootstrap.create_app`. A request without a cost is charged nowhere."""
    patch.object(Application, "_charge", lambda *_: None).start()
    return bootstrap.create_app()


if __name__ == "__main__":
    # By its name, because the server processes of `--workers` import it.
    with patch.object(server, "APPLICATION", "benchmarks.ingest.unmetered:create_app"):
        main()
