"""`uploader` with a server that computes no digests along the frontier: `python -m benchmarks.ingest.undigested serve`.

This is no setting of the product: it is for telling receiving from hashing. A merge still computes both digests.
"""

from unittest.mock import patch

from uploader import bootstrap
from uploader.bootstrap import application
from uploader.cli import main
from uploader.domain.upload import Upload
from uploader.http.app import Application
from uploader.storage.local import store as local
from uploader.storage.local.digests import Followers


class Unfollowed(Followers):
    """Follows no upload, so it takes no offer either."""

    def follow(self, upload: Upload) -> None:
        return None


def create_app() -> Application:
    """As `bootstrap.create_app`."""
    with patch.object(local, "Followers", Unfollowed):
        return bootstrap.create_app()


if __name__ == "__main__":
    # By its name, because the server processes of `--workers` import it.
    with patch.object(application, "APPLICATION", "benchmarks.ingest.undigested:create_app"):
        main()
