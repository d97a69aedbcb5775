"""`uploader` with a server that computes no digests along the frontier: `python -m benchmarks.ingest.undigested serve`.

This is no setting of the product: it is for telling receiving from hashing. A merge still computes both digests.
"""

from unittest.mock import patch

from uploader import bootstrap
from uploader.bootstrap import server
from uploader.cli import main
from uploader.http.app import Application
from uploader.storage.local.digests import LocalDigests


def create_app() -> Application:
    """As `bootstrap.create_app`. The store follows no upload, so it takes no offer either."""
    patch.object(LocalDigests, "_follow", lambda _store, _upload: None).start()
    return bootstrap.create_app()


if __name__ == "__main__":
    # By its name, because the server processes of `--workers` import it.
    with patch.object(server, "APPLICATION", "benchmarks.ingest.undigested:create_app"):
        main()
