"""Finds server and token for the client commands, in the environment or in the file of `login`. Runs these commands: shows
their events, and turns errors into exit codes.
"""

import asyncio
import ipaddress
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click
from msgspec import Struct

from uploader.cli.client import events
from uploader.cli.client.options import shown_options
from uploader.cli.client.reporters import JsonLines, Quiet, Reporter
from uploader.cli.terminal import EXIT_CONFIGURATION, EXIT_OK, ask, fail
from uploader.client import AsyncClient, ClientError, Patience, Unauthenticated
from uploader.client.links import LinkAddress, configuration_directory, write_secret

# The default address of `uploader serve`.
DEFAULT_URL = "http://127.0.0.1:8000"
_SHORT_PATIENCE_SECONDS = 10.0
_NOBODY = "nobody is logged in: run `uploader login URL`, or set UPLOADER_URL and UPLOADER_TOKEN"
# Longer than any pause between two attempts.
_SAME_TROUBLE_SECONDS = 60.0


class Profile(Struct, frozen=True):
    """A server and a token; None for a server without authentication."""

    url: str
    token: str | None

    @property
    def is_readable_on_the_way(self) -> bool:
        """Return True if the token goes to another machine without TLS. Raises ValueError for an invalid URL."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        if self.token is None or parts.scheme != "http":
            return False
        try:
            return not ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host != "localhost" and not host.endswith(".localhost")


def profile_of_link(link: str) -> Profile | None:
    """Return server and token of a sign-in link (`/#token=…` or `/admin/#token=…`); None for a URL without a token."""
    url, _, fragment = link.partition("#")
    tokens = parse_qs(fragment).get("token")
    return Profile(url.rstrip("/").removesuffix("/admin"), tokens[0]) if tokens else None


def profile_path(environment: Mapping[str, str]) -> Path:
    """Return the file in which `login` keeps the profile."""
    return configuration_directory(environment) / "client.toml"


def load_profile(environment: Mapping[str, str] = os.environ) -> Profile | None:
    """Return the profile in `UPLOADER_URL` and `UPLOADER_TOKEN`, or else in the file. None if neither names a server. Raises
    ValueError with the fault of the file.

    A stored token belongs to the server stored with it, and is never sent to another server.
    """
    try:
        kept = _read(profile_path(environment))
    except FileNotFoundError:
        kept = {}
    url = environment.get("UPLOADER_URL") or kept.get("url")
    if not url:
        return None
    token = environment.get("UPLOADER_TOKEN")
    if not token and url.rstrip("/") == kept.get("url", "").rstrip("/"):
        token = kept.get("token")
    return Profile(url, token or None)


def save_profile(profile: Profile, environment: Mapping[str, str] = os.environ) -> Path:
    """Store the profile, readable only for this user. Raises OSError."""
    path = profile_path(environment)
    members = {"url": profile.url, "token": profile.token}
    # Every JSON string is also a TOML string.
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in members.items() if value]
    write_secret(path, "".join(lines))
    return path


def _read(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
        import tomllib  # imported here, because many users have no such file

        kept = tomllib.loads(text)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} can't be read: {error}") from error
    return {name: value for name, value in kept.items() if isinstance(value, str)}


def kept_profile() -> Profile | None:
    try:
        return load_profile()
    except ValueError as error:
        fail(str(error), EXIT_CONFIGURATION)


def run_client(
    work: Callable[[AsyncClient, Reporter], Awaitable[int]],
    *,
    as_json: bool,
    quiet: bool,
    profile: Profile | None = None,
    link: LinkAddress | None = None,
    password: Callable[[], str] | None = None,
    patience_seconds: float = _SHORT_PATIENCE_SECONDS,
    **options: Any,
) -> None:
    """Run a command and exit with its code; `options` go to `AsyncClient`. With a link, no profile is needed; `password` is
    called if the link has a password."""
    caller = link or profile or kept_profile() or fail(_NOBODY, EXIT_CONFIGURATION)

    async def run(reporter: Reporter) -> int:
        told_at: dict[str, float] = {}

        def tell(error: ClientError, pause_seconds: float) -> None:
            """Mark an error as repeated if it was shown less than a minute ago."""
            now = time.monotonic()
            repeated = now - told_at.get(error.detail, -_SAME_TROUBLE_SECONDS) < _SAME_TROUBLE_SECONDS
            told_at[error.detail] = now
            reporter.show(events.Retrying(error.code, error.detail, pause_seconds, repeated))

        told = {"patience": Patience(give_up_after_seconds=patience_seconds), "on_retry": tell, **options}
        try:
            async with await _client(caller, password, told) as client:
                return await work(client, reporter)
        except ClientError as error:
            reporter.show(events.failed(None, error))
            return events.exit_code_of(error)

    try:
        with _make_reporter(as_json=as_json, quiet=quiet) as reporter:
            code = asyncio.run(run(reporter))
    except KeyboardInterrupt:
        code = events.EXIT_INTERRUPTED
    sys.exit(code)


async def _client(
    caller: Profile | LinkAddress, password: Callable[[], str] | None, options: dict[str, Any]
) -> AsyncClient:
    """Raises ClientError if a link does not exist or has ended."""
    try:
        if isinstance(caller, LinkAddress):
            return await AsyncClient.from_link(caller.url, password, **options)
        return AsyncClient(caller.url, caller.token, **options)
    except ValueError as error:
        fail(f"{error}: see UPLOADER_URL and `uploader login`", EXIT_CONFIGURATION)


def with_client(work: Callable[..., Awaitable[int]]) -> Callable[..., None]:
    """Turn `work` into a command with a client and a reporter; the other parameters of `work` are those of the command."""

    @shown_options
    @wraps(work)
    def command(as_json: bool, quiet: bool, **given: Any) -> None:
        run_client(partial(work, **given), as_json=as_json, quiet=quiet)

    return command


def _make_reporter(*, as_json: bool, quiet: bool) -> Reporter:
    if as_json:
        return JsonLines()
    if quiet:
        return Quiet()
    if not sys.stderr.isatty():
        return Reporter()
    from uploader.cli.client.display import reporter_of_terminal

    return reporter_of_terminal()


@click.command()
@click.argument("url", required=False)
@shown_options
def login(url: str | None, as_json: bool, quiet: bool) -> None:
    """Try a server's URL and your token, and keep them. The URL may be a link that signs in, as `uploader serve` prints it
    on a terminal: it has both.

    Without such a link, the command asks for the token on the terminal, or reads it from standard input: others can see
    arguments. It keeps both in ~/.config/uploader/client.toml (or below XDG_CONFIG_HOME), readable by you alone.
    UPLOADER_URL and UPLOADER_TOKEN override them.
    """
    profile = _ask(url)

    async def work(client: AsyncClient, reporter: Reporter) -> int:
        if profile.is_readable_on_the_way:
            why = "on the way to it others can read your token, and all that you send"
            reporter.show(events.Noted(f"{profile.url} is no https: {why}"))
        try:
            await client.usage()
            path = save_profile(profile)
        except Unauthenticated as error:  # a hint at `uploader login` would not help here
            reporter.show(events.Failed(None, error.code, error.detail, error.retryable))
            return events.EXIT_AUTHENTICATION
        except OSError as error:
            fail(f"{error.filename} can't be written: {error.strerror}", events.EXIT_FAILED)
        reporter.show(events.LoggedIn(profile.url, str(path)))
        return EXIT_OK

    run_client(work, as_json=as_json, quiet=quiet, profile=profile)


def _ask(url: str | None) -> Profile:
    try:
        kept, asks = kept_profile(), sys.stdin.isatty()
        offered = kept.url if kept is not None else DEFAULT_URL
        url = url or (ask("Server", default=offered) if asks else offered)
        if linked := profile_of_link(url):
            return linked
        if not asks:
            return Profile(url, sys.stdin.readline().strip() or None)
        return Profile(url, ask("Token", hidden=True).strip())
    except (click.Abort, KeyboardInterrupt):
        sys.exit(events.EXIT_INTERRUPTED)
