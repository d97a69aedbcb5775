"""A server that a test kills, and starts again in the same place."""

from pathlib import Path

from tests.support.process import Server, ended, owner_token


class Mortal:
    def __init__(self, directory: Path, **settings: str) -> None:
        directory.mkdir(exist_ok=True)
        self._log = directory / "log"
        self._settings = {"DATA": str(directory / "data"), "FREE_SPACE_FLOOR": "0", "CHUNK_SIZE": "1MiB", **settings}
        self.server = Server(self._log, self._settings)
        self.url = self.server.url
        self.token = owner_token(directory / "data")

    def kill_and_start(self) -> None:
        """SIGKILL to all of it, and another one in its place."""
        self.end()
        self.server = Server(self._log, self._settings, port=self.server.port)

    def end(self) -> None:
        with ended(self.server):
            pass
