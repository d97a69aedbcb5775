"""What everything that can go wrong is; `errors.py` has the names. Knows nothing of HTTP."""

from typing import Any, ClassVar


class UploaderError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "internal-error"
    retryable: ClassVar[bool] = False

    def __init__(self, detail: str | None = None, *, inside: str | None = None, **fields: Any) -> None:
        """`inside`: which host or file it was and what that said, for the log and the commands of the server alone."""
        self.inside = inside
        self.detail = detail or message_of(type(self))
        self.fields = fields
        super().__init__(self.detail)

    @property
    def reason(self) -> str:
        """What to tell whoever runs the server."""
        return self.inside or self.detail


def message_of(error: type[UploaderError]) -> str:
    """The first line of an error's docstring: what it says when nothing more precise is known."""
    return (error.__doc__ or "").strip().splitlines()[0]
