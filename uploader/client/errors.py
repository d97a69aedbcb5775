"""Every error of the client that has a name, as one tree. Programs compare the `code` of an error.

ClientError
├── ServerProblem        the server's answer: its code, status and further members
│   ├── Unauthenticated
│   │   └── WrongPassword  LinkGone
│   └── QuotaExceeded  TooManyFiles  LinkExhausted  NotFound
├── Stopped
│   └── Cancelled
└── Unreachable  BadAnswer  BadProxy  Unreadable  Unwritable  InvalidName  HiddenName  AmbiguousName  LeadsOutside
    ServerTooOld  FileChanged  ContentDiffers  TargetExists  TargetBusy
"""

from typing import Any


class ClientError(Exception):
    """Something went wrong."""

    code = "failed"
    # True if the same call may succeed later, without any change.
    retryable = False

    def __init__(self, detail: str | None = None, *, code: str | None = None) -> None:
        self.detail = detail or (type(self).__doc__ or "").strip().splitlines()[0]
        if code is not None:
            self.code = code
        super().__init__(self.detail)


class ServerProblem(ClientError):
    """The server refused; `code` says why, `fields` holds what else it said."""

    def __init__(
        self,
        detail: str,
        *,
        code: str,
        status: int,
        retryable: bool = False,
        retry_after_seconds: float | None = None,
        fields: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(detail, code=code)
        self.status = status
        self.retryable = retryable
        self.retry_after_seconds = retry_after_seconds
        self.fields = fields or {}
        # True if an earlier attempt of this call may have succeeded, and its answer was lost.
        self.after_retry = False


class Unauthenticated(ServerProblem):
    """The server does not know the token, or does not allow this to it."""


class WrongPassword(Unauthenticated):
    """The link has a password, and this is not it."""


class LinkGone(Unauthenticated):
    """The link has ended; `fields` holds the `reason`: `expired`, `revoked`, `exhausted` or `deleted`."""


class QuotaExceeded(ServerProblem):
    """The file does not fit into the total space; `fields` holds the figures."""


class TooManyFiles(ServerProblem):
    """There are as many files and open uploads as one may have; `fields` holds the `limit`."""


class LinkExhausted(ServerProblem):
    """The link takes no more: it does not say why, as that is its owner's."""


class NotFound(ServerProblem):
    """There is no such file, upload or link, or there is none any more."""


class Unreachable(ClientError):
    """The server can't be reached, or the connection broke."""

    code = "unreachable"

    def __init__(self, detail: str | None = None, *, retryable: bool = True) -> None:
        super().__init__(detail)
        self.retryable = retryable


class BadAnswer(ClientError):
    """The answer is none that an upload server gives: is the URL right?"""

    code = "bad-answer"


class BadProxy(ClientError):
    """The environment names a proxy that can't be used."""

    code = "bad-proxy"


class Unreadable(ClientError):
    """The source of an upload can't be read."""

    code = "unreadable"


class Unwritable(ClientError):
    """The target of a download can't be written."""

    code = "unwritable"


class InvalidName(ClientError):
    """The server takes no file of this name."""

    code = "invalid-name"


class HiddenName(ClientError):
    """A stranger gave the file a hidden name, or that of a device."""

    code = "hidden-name"


class AmbiguousName(ClientError):
    """Several files have this name."""

    code = "ambiguous-name"


class LeadsOutside(ClientError):
    """A symbolic link is in the way: what is written there would be elsewhere."""

    code = "leads-outside"


class ServerTooOld(ClientError):
    """The server is too old to replace files, or to refuse names that are taken."""

    code = "server-too-old"


class FileChanged(ClientError):
    """The file changed while it was uploaded."""

    code = "file-changed"


class ContentDiffers(ClientError):
    """The bytes at the other end are not the bytes at this end."""

    code = "content-differs"


class TargetExists(ClientError):
    """There is another file where the download was to go."""

    code = "target-exists"


class TargetBusy(ClientError):
    """Another download of the same content into the same directory is running."""

    code = "target-busy"
    retryable = True


class Stopped(ClientError):
    """The transfer was stopped; what has arrived stays, and the same call goes on from there."""

    code = "stopped"


class Cancelled(Stopped):
    """The transfer was cancelled; the server keeps nothing of it."""

    code = "cancelled"
