"""Options that client commands share. Options for the client have the parameter names of `run_client`."""

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
    help="Chunks and files to move at the same time.",
)
patience = click.option(
    "--patience",
    "patience_seconds",
    type=DURATION,
    default="5m",
    show_default=True,
    help="Keep trying for so long while the server is away.",
)
limit_rate = click.option(
    "--limit-rate",
    "most_bytes_per_second",
    type=LIMIT_RATE,
    metavar="RATE",
    help="Limit the bytes a second of all together, such as 10M.",
)
delta = click.option(
    "--delta/--no-delta",
    default=None,
    help="Send what changed of large files, or all.  [default: by the line]",
)
files_from = click.option(
    "--files-from",
    type=click.File("rb"),
    metavar="FILE",
    help="Take only the paths in this file, one a line; - is standard input.",
)
follow = click.option(
    "-L",
    "--follow",
    "follows",
    is_flag=True,
    help="Follow symbolic links. Without it they are left out.",
)
no_empty = click.option("--no-empty", is_flag=True, help="Leave empty folders out.")
verbose = click.option("--verbose", "-v", is_flag=True, help="Print a line for each file of a folder.")


def shown_options(command: F) -> F:
    """Add `--json` and `--quiet`."""
    command = click.option("--quiet", "-q", is_flag=True, help="Print errors only.")(command)
    return click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines.")(command)


def filters(command: F) -> F:
    """Add `--exclude` and `--include`; a `Filtered` command gets them as `filters`."""
    command = click.option(
        "--include",
        multiple=True,
        metavar="PATTERN",
        expose_value=False,
        help="Include files that match, unless an earlier --exclude matches. With --include alone, leave out all others.",
    )(command)
    return click.option(
        "--exclude",
        multiple=True,
        metavar="PATTERN",
        expose_value=False,
        help="Leave out files that match, unless an earlier --include matches.",
    )(command)


class Filtered(click.Command):
    """A command that keeps the common order of `--exclude` and `--include`, which click loses."""

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
    """Return the paths of `--files-from`. An invalid list is bad usage."""
    try:
        return listed_in(opened)
    except ValueError as error:
        fail(f"--files-from: {error}", EXIT_USAGE)
