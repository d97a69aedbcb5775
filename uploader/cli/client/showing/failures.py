"""What went wrong, told to a person: with what they can do about it, and with figures as they read them."""

import os

from uploader.cli.client.showing.events import Failed
from uploader.cli.readable import human_bytes, shown_path
from uploader.client import ClientError, QuotaExceeded, ServerProblem, Unauthenticated


def failed(path: str | None, error: ClientError) -> Failed:
    """A failure of one file, or of all of it."""
    return Failed(path, error.code, shown_path(_words_of(error)), error.retryable)


def _words_of(error: ClientError) -> str:
    if isinstance(error, Unauthenticated) and error.code == "unauthenticated":
        given = bool(os.environ.get("UPLOADER_TOKEN"))
        way = "it is the one of UPLOADER_TOKEN" if given else "`uploader login` asks for one and keeps it"
        return f"{error.detail}; {way}"
    if not isinstance(error, ServerProblem):
        return error.detail
    sizes = {name: human_bytes(value) for name, value in error.fields.items() if isinstance(value, int)}
    try:
        return _refusal(error, sizes) or error.detail
    except KeyError:  # a server that gives no figures
        return error.detail


def _refusal(error: ServerProblem, sizes: dict[str, str]) -> str | None:
    """A file that does not fit, with the figures. Raises KeyError if they were not given."""
    if isinstance(error, QuotaExceeded):
        fields = error.fields
        free_bytes = fields["total_space"] - fields["use_space_finished"] - fields["reserved"]
        free = f"{human_bytes(max(0, free_bytes))} of your {sizes['total_space']} are free"
        held = f", {sizes['reserved']} are kept for open uploads (`uploader uploads`)" if fields["reserved"] else ""
        return f"not enough space: the file needs {sizes['requested']}, and {free}{held}"
    if error.code == "storage-full" and "limit" in sizes:
        holds = f"it needs {sizes['requested']}, and at most {sizes['limit']} fit"
        return f"the server's disk is too small for this file: {holds}"
    if error.code == "storage-full":
        return f"the server's disk is full: the file needs {sizes['requested']}, and {sizes['available']} are free"
    if error.code == "file-too-large":
        return f"the server takes no file larger than {sizes['limit']}"
    return None
