"""What is around the requests of a protocol of others, which has paths of its own and its own words for what went wrong."""

from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from uploader.errors import UploaderError


class Dialect(Protocol):
    """Such a protocol."""

    @property
    def prefix(self) -> str:
        """What its paths begin with."""

    def begin(self, request: Request) -> Response | None:
        """Look at a request before anything else does, and perhaps answer it at once; its method and its path may be others
        after this."""

    def refuse(self, request: Request, error: UploaderError, headers: dict[str, str]) -> Response:
        """Its answer to a request that failed with `error`; `headers` are what every answer has that says this."""

    def mark(self, request: Request, response: Response) -> None:
        """Say in an answer what every answer says."""
