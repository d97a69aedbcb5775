"""`uploader` with a server that hashes as without a compiled kernel: `python -m benchmarks.ingest.unlaned serve`.

This is no setting of the product: it is for telling what hashing in lanes is worth.
"""

from unittest.mock import patch

from uploader import bootstrap
from uploader.bootstrap import server
from uploader.cli import main
from uploader.http.app import Application
from uploader.storage import hashes


def create_app() -> Application:
    """As `bootstrap.create_app`. No kernel is found, so nobody gathers."""
    patch.object(hashes, "kernel", lambda _algorithm: None).start()
    hashes._gathering.cache_clear()  # what looked before the start has found it
    return bootstrap.create_app()


if __name__ == "__main__":
    # By its name, because the server processes of `--workers` import it.
    with patch.object(server, "APPLICATION", "benchmarks.ingest.unlaned:create_app"):
        main()
