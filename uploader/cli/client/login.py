"""`login`: keep a server and a token for the other client commands."""

import sys
from typing import TYPE_CHECKING

import click

from uploader.cli.client.connecting import (
    EXIT_AUTHENTICATION,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    kept_profile,
    run_client,
    shown_options,
)
from uploader.cli.exits import EXIT_OK, fail

if TYPE_CHECKING:
    from uploader.cli.client.profile import Profile
    from uploader.cli.client.showing.reporters import Reporter
    from uploader.client import AsyncClient


@click.command()
@click.argument("url", required=False)
@shown_options
def login(url: str | None, as_json: bool, quiet: bool) -> None:
    """Keep a server's URL and your token, after trying them. The URL may be a link that signs in, as `uploader serve` prints
    it on a terminal: it has both.

    Without such a link the token is asked for on the terminal, or else read from standard input: others can see arguments.
    It is kept in ~/.config/uploader/client.toml (or below XDG_CONFIG_HOME), readable by you alone. UPLOADER_URL and
    UPLOADER_TOKEN go before it.
    """
    profile = _ask(url)

    async def work(client: "AsyncClient", reporter: "Reporter") -> int:
        from uploader.cli.client.profile import save_profile
        from uploader.cli.client.showing.events import Failed, LoggedIn, Noted
        from uploader.client import Unauthenticated

        if profile.is_readable_on_the_way:
            reporter.show(
                Noted(f"{profile.url} is no https: on the way to it others can read your token, and all that you send")
            )
        try:
            await client.usage()
            path = save_profile(profile)
        except Unauthenticated as error:  # who is about to log in needs no word about how
            reporter.show(Failed(None, error.code, error.detail, error.retryable))
            return EXIT_AUTHENTICATION
        except OSError as error:
            fail(f"{error.filename} can't be written: {error.strerror}", EXIT_FAILED)
        reporter.show(LoggedIn(profile.url, str(path)))
        return EXIT_OK

    run_client(work, as_json=as_json, quiet=quiet, profile=profile)


def _ask(url: str | None) -> "Profile":
    from uploader.cli.client.profile import DEFAULT_URL, Profile, profile_of_link

    try:
        kept, asks = kept_profile(), sys.stdin.isatty()
        offered = kept.url if kept is not None else DEFAULT_URL
        url = url or (click.prompt("Server", default=offered, err=True) if asks else offered)
        if linked := profile_of_link(url):
            return linked
        if not asks:
            return Profile(url, sys.stdin.readline().strip() or None)
        return Profile(url, click.prompt("Token", hide_input=True, err=True).strip())
    except (click.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
