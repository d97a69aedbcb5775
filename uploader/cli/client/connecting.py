"""How a client command runs: which server, how its events are shown, and how errors become exit codes."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from uploader.cli.exits import EXIT_CONFIGURATION, EXIT_OK, fail

if TYPE_CHECKING:
    from uploader.cli.client.profile import Profile
    from uploader.cli.client.showing.reporters import Reporter
    from uploader.client import AsyncClient, ClientError

F = TypeVar("F", bound=Callable[..., Any])

EXIT_AUTHENTICATION = 3
EXIT_QUOTA = 4
EXIT_TRY_AGAIN = 5
EXIT_FAILED = 6
EXIT_INTERRUPTED = 130

# Of several failures the most telling one counts: what only a person can mend goes before what time may mend.
_BY_WEIGHT = (EXIT_AUTHENTICATION, EXIT_QUOTA, EXIT_FAILED, EXIT_TRY_AGAIN)
_SHORT_PATIENCE_SECONDS = 10.0
_NOBODY = "nobody is logged in: run `uploader login URL`, or set UPLOADER_URL and UPLOADER_TOKEN"
# Longer than any pause between two tries.
_SAME_TROUBLE_SECONDS = 60.0


def shown_options(command: F) -> F:
    """`--json` and `--quiet`."""
    command = click.option("--quiet", "-q", is_flag=True, help="Say only what went wrong.")(command)
    return click.option("--json", "as_json", is_flag=True, help="Print events as JSON, one a line.")(command)


def exit_code_of(error: "ClientError") -> int:
    from uploader.client import QuotaExceeded, Unauthenticated

    if isinstance(error, Unauthenticated):
        return EXIT_AUTHENTICATION
    if isinstance(error, QuotaExceeded):
        return EXIT_QUOTA
    return EXIT_TRY_AGAIN if error.retryable else EXIT_FAILED


def worst_of(codes: set[int]) -> int:
    """The exit code of a command some of whose parts failed with these."""
    return next((code for code in _BY_WEIGHT if code in codes), EXIT_OK)


def kept_profile() -> "Profile | None":
    """Who is logged in."""
    from uploader.cli.client.profile import load_profile

    try:
        return load_profile()
    except ValueError as error:
        fail(str(error), EXIT_CONFIGURATION)


def run_client(
    work: "Callable[[AsyncClient, Reporter], Awaitable[int]]",
    *,
    as_json: bool,
    quiet: bool,
    profile: "Profile | None" = None,
    patience_seconds: float = _SHORT_PATIENCE_SECONDS,
    **options: Any,
) -> None:
    """Run a command to its end and exit with the code it gives; `options` are of `AsyncClient`."""
    from uploader.cli.client.showing.failures import failed
    from uploader.client import AsyncClient, ClientError, Patience

    profile = profile or kept_profile() or fail(_NOBODY, EXIT_CONFIGURATION)

    async def run(reporter: "Reporter") -> int:
        retries = _Retries(reporter)
        patience = Patience(give_up_after_seconds=patience_seconds)
        try:
            client = AsyncClient(profile.url, profile.token, patience=patience, on_retry=retries.tell, **options)
        except ValueError as error:
            fail(f"{error}: see UPLOADER_URL and `uploader login`", EXIT_CONFIGURATION)
        try:
            async with client:
                return await work(client, reporter)
        except ClientError as error:
            reporter.show(failed(None, error))
            return exit_code_of(error)

    try:
        with _make_reporter(as_json=as_json, quiet=quiet) as reporter:
            code = asyncio.run(run(reporter))
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    sys.exit(code)


class _Retries:
    """Tells of calls that are tried again, and of each trouble to a person but once."""

    def __init__(self, reporter: "Reporter") -> None:
        self._reporter = reporter
        self._told: dict[str, float] = {}

    def tell(self, error: "ClientError", pause_seconds: float) -> None:
        from uploader.cli.client.showing.events import Retrying

        now = time.monotonic()
        repeated = now - self._told.get(error.detail, -_SAME_TROUBLE_SECONDS) < _SAME_TROUBLE_SECONDS
        self._told[error.detail] = now
        self._reporter.show(Retrying(error.code, error.detail, pause_seconds, repeated))


def _make_reporter(*, as_json: bool, quiet: bool) -> "Reporter":
    """Who shows the events of this command."""
    from uploader.cli.client.showing.reporters import JsonLines, Quiet, Reporter

    if as_json:
        return JsonLines()
    if quiet:
        return Quiet()
    if not sys.stderr.isatty():
        return Reporter()
    from uploader.cli.client.showing.bars import reporter_of_terminal

    return reporter_of_terminal()
