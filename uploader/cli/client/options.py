"""Options that client commands have in common; those of the client itself by the names that `run_client` has for them."""

from collections.abc import Callable
from typing import IO, Any, TypeVar

import click

from uploader.cli.client.filters import Filters, Rule, listed_in
from uploader.cli.terminal import DURATION, EXIT_USAGE, LIMIT_RATE, fail

F = TypeVar("F", bound=Callable[..., Any])

connections = click.option(
    "--connections",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Chunks, and files, at the same time.",
)
patience = click.option(
    "--patience",
    "patience_seconds",
    type=DURATION,
    default="5m",
    show_default=True,
    help="How long to keep trying while the server can't be reached.",
)
limit_rate = click.option(
    "--limit-rate",
    "most_bytes_per_second",
    type=LIMIT_RATE,
    metavar="RATE",
    help="Move no more than this in a second, such as 10M, over all connections together.",
)
delta = click.option(
    "--no-delta",
    "delta",
    flag_value=False,
    type=bool,
    default=True,
    help="Send the whole of what replaces a file of 8 MiB or more, not only what changed.",
)
files_from = click.option(
    "--files-from",
    type=click.File("rb"),
    metavar="FILE",
    help="Only what is named in this file, one path a line; - is standard input.",
)
verbose = click.option("--verbose", "-v", is_flag=True, help="A line for each file of a folder.")


def shown_options(command: F) -> F:
    """`--json` and `--quiet`."""
    command = click.option("--quiet", "-q", is_flag=True, help="Say only what went wrong.")(command)
    return click.option("--json", "as_json", is_flag=True, help="Print events as JSON, one a line.")(command)


def filters(command: F) -> F:
    """`--exclude` and `--include`; their values come as `filters`, of a command that is `Filtered`."""
    command = click.option(
        "--include",
        multiple=True,
        metavar="PATTERN",
        expose_value=False,
        help="Take what matches this, if no --exclude before it does; if there are only these, nothing else.",
    )(command)
    return click.option(
        "--exclude",
        multiple=True,
        metavar="PATTERN",
        expose_value=False,
        help="Leave out what matches this, if no --include before it does.",
    )(command)


class Filtered(click.Command):
    """A command whose `--exclude` and `--include` count in the order in which they were given, which click forgets."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, _, order = self.make_parser(ctx).parse_args(args=list(args))
        values = {name: iter(given.get(name) or ()) for name in ("exclude", "include")}
        try:
            rules = [
                Rule(next(values[option.name]), includes=option.name == "include")
                for option in order
                if option.name in values
            ]
        except ValueError as error:
            raise click.UsageError(str(error), ctx) from error
        rest = super().parse_args(ctx, args)
        ctx.params["filters"] = Filters(rules)
        return rest


def listed(opened: IO[bytes]) -> list[str]:
    """The paths of `--files-from`; what is no such list is bad usage."""
    try:
        return listed_in(opened)
    except ValueError as error:
        fail(f"--files-from: {error}", EXIT_USAGE)
