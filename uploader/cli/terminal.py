"""Input and output for all commands: parses sizes, durations and times, formats them for people, and ends a command with a
line on standard error and an exit code.

All other modules print through this one. Names, answers of servers and output of tools are foreign text: none of it may move
the cursor, forge a line or hide characters.
"""

import codecs
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from uploader.domain.names import CONTROL
from uploader.units import human_bytes, parse_duration, parse_moment, parse_rate, parse_size

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import RenderableType

# Exit codes of all commands; clients and server commands define their own codes for failures.
EXIT_OK = 0
EXIT_USAGE = 2  # as in click
EXIT_CONFIGURATION = 2

T = TypeVar("T")

# A margin: servers refuse bodies slower than 1 KiB/s.
_LEAST_RATE_BYTES = 4 << 10

# Characters that a terminal obeys or does not show: controls, lone surrogates, fillers, format characters, tags. Kept are
# joiners between non-ASCII letters, and the first variation selector after a character.
_ALWAYS = (
    CONTROL.pattern[1:-1]
    + "\ud800-\udfff\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0"
    + "\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_HIDDEN = re.compile(
    f"[{_ALWAYS}]"
    "|(?<![^\0-\x7f\u200c\u200d])[\u200c\u200d]|[\u200c\u200d](?![^\0-\x7f\u200c\u200d])"
    "|(?<=[\ufe00-\ufe0f])[\ufe00-\ufe0f]"
)
# A single class of characters: a search takes a tenth of the time.
_SUSPECT = re.compile(f"[{_ALWAYS}\u200c\u200d\ufe00-\ufe0f]")
# The only escape sequences within the client's own lines: colours.
_COLOURS = re.compile(r"(\x1b\[[0-9;]*m)")
# Wipes the drawn lines, except the first, which stays as an empty line: tmux would save the screen's content to its history
# if everything was wiped. Wrapping is off while lines are drawn, so each line takes one line of the screen.
_WIPE = "\r\x1b[K\n\x1b[J\x1b[A"
_NO_WRAP, _WRAP, _UP = "\x1b[?7l", "\x1b[?7h", "\x1b[A"
# The width if the terminal reports none.
_USUAL_COLUMNS = 80
# A longer line of a command is printed in pieces.
_LINE_CHARACTERS = 4096


def shown(text: str) -> str:
    """Return foreign text as one harmless line: each hidden character is written as a JSON escape. JSON keeps its
    meaning."""
    if text.isascii() and text.isprintable():
        return text
    return text if _SUSPECT.search(text) is None else _HIDDEN.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def styled(line: str) -> str:
    """Return a line with its colours; everything else is made harmless."""
    return "".join(part if number % 2 else shown(part) for number, part in enumerate(_COLOURS.split(line)))


def say(line: str, *, err: bool = False, is_prose: bool = False) -> None:
    """Print one line. Wraps prose, and all lines on standard error, to the width of a terminal."""
    lines = [shown(line)]
    if sys.stderr.isatty() if err else is_prose and sys.stdout.isatty():
        import textwrap  # imported here, because most lines need no wrapping

        size = os.get_terminal_size(sys.stderr.fileno() if err else sys.stdout.fileno())
        wrapper = textwrap.TextWrapper(
            size.columns or _USUAL_COLUMNS,
            break_long_words=False,
            break_on_hyphens=False,
            expand_tabs=False,
            replace_whitespace=False,
        )
        lines = wrapper.wrap(lines[0]) or lines
    for each in lines:
        click.echo(shown(each), err=err)


def say_over(line: str) -> None:
    """Replace the last line of standard error, which must be a terminal."""
    click.echo(f"\r\x1b[K{shown(line)}", err=True, nl=False)


def say_below(lines: list[str], *, over: bool) -> None:
    """Draw lines on standard error, which must be a terminal; with `over`, replace the lines drawn before. The cursor rests
    on the first line, which is empty. From there one sequence wipes all lines, even after the terminal was resized, and
    typed text or an echoed `^C` spoils nothing."""
    wipe, drawing = _WIPE if over else "", "\r\n".join(map(styled, lines))
    click.echo(f"{wipe}{_NO_WRAP}{drawing}{_WRAP}\r{_UP * (len(lines) - 1)}", err=True, nl=False)


def wipe_below() -> None:
    click.echo(_WIPE, err=True, nl=False)


def say_csv(lines: str) -> None:
    """Print lines of CSV. CSV has no escapes, so hidden characters are shown as everywhere else."""
    for line in lines.split("\r\n")[:-1]:
        click.echo(f"{shown(line)}\r")


def ask(question: str, *, default: str | None = None, hidden: bool = False, confirm: bool = False) -> str:
    """Ask on standard error. Raises click.Abort."""
    offer = "" if default is None else f" [{default}]"
    return str(
        click.prompt(
            shown(f"{question}{offer}"),
            default=default,
            show_default=False,
            hide_input=hidden,
            confirmation_prompt=confirm,
            err=True,
        )
    )


def fail(message: str, code: int) -> NoReturn:
    """Print the message and exit with this code."""
    fail_lines([message], code)


def fail_lines(messages: Iterable[str], code: int) -> NoReturn:
    """Print the messages, one per line, and exit with this code."""
    for message in messages:
        say(f"uploader: {message}", err=True)
    sys.exit(code)


def drawn(*parts: "RenderableType", width: int | None = None, err: bool = False) -> list[str]:
    """Render tables and texts into lines, with the colours that the stream supports. Print them by `styled`."""
    from rich.console import Console  # imported here, because most commands draw nothing

    console = Console(width=width, stderr=err, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(*parts, sep="\n")
    return captured.get().removesuffix("\n").split("\n")


def say_drawn(*parts: "RenderableType", width: int | None = None) -> None:
    for part in parts:
        for line in drawn(part, width=width):
            click.echo(styled(line))


class ForeignOutput:
    """Passes the output of a program on while it comes. Terminals and standard error get harmless lines, long ones in
    pieces; redirected standard output gets the original bytes."""

    def __init__(self, *, err: bool) -> None:
        self._err = err
        self._as_it_is = not err and not sys.stdout.isatty()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = ""

    def write(self, block: bytes) -> None:
        if self._as_it_is:
            sys.stdout.buffer.write(block)
            sys.stdout.flush()
            return
        *lines, self._held = (self._held + self._decode(block)).split("\n")
        for line in lines:
            say(line.removesuffix("\r"), err=self._err)
        while len(self._held) > _LINE_CHARACTERS:
            say(self._held[:_LINE_CHARACTERS], err=self._err)
            self._held = self._held[_LINE_CHARACTERS:]

    def close(self) -> None:
        if rest := self._held + self._decode(b"", final=True):
            say(rest, err=self._err)


@contextmanager
def shown_usage() -> Iterator[None]:
    """Make click print usage errors as harmless lines, because a command line may contain foreign words."""
    try:
        yield
    except click.ClickException as error:
        show = error.show

        def show_lines(file: IO[Any] | None = None) -> None:
            show(told := io.StringIO())
            for line in told.getvalue().removesuffix("\n").split("\n"):
                say(line, err=True)

        error.show = show_lines  # type: ignore[method-assign]
        raise


def guard_traces() -> None:
    """Make Python print uncaught errors, and log records without a configured log, as harmless lines."""
    import logging  # imported here, because listing commands needs neither
    import threading

    class Shown(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return "\n".join(map(shown, super().format(record).split("\n")))

    def tell(kind: type[BaseException], error: BaseException | None, trace: "TracebackType | None") -> None:
        import traceback

        for part in traceback.format_exception(kind, error, trace):
            for line in part.removesuffix("\n").split("\n"):
                say(line, err=True)

    def tell_of(hidden: "threading.ExceptHookArgs | sys.UnraisableHookArgs") -> None:
        if hidden.exc_type is not SystemExit:
            tell(hidden.exc_type, hidden.exc_value, hidden.exc_traceback)

    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Shown())
    sys.excepthook = tell
    threading.excepthook = sys.unraisablehook = tell_of


def exact_bytes(size_bytes: int) -> str:
    """Return a size in a unit, and in bytes if that differs."""
    return f"{size_bytes} bytes" if size_bytes < 1000 else f"{human_bytes(size_bytes)} ({size_bytes} bytes)"


def human_seconds(seconds: float) -> str:
    """Return a duration in its two largest units."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, length, smaller, smaller_length in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // smaller_length} {smaller}"
    return f"{whole} s"


def percent(part: int, whole: int) -> str:
    """Return a share in whole percent; 100 % if `whole` is 0."""
    return f"{100 * part // whole if whole else 100} %"


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return a path as text; bytes that are not UTF-8 are replaced."""
    return os.fsdecode(path).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class ParsedType(click.ParamType[T]):
    """An option with a parser; a ValueError of the parser is bad usage."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(f"{value!r} is {error}", param, ctx)


def _parse_some_duration(text: str) -> float:
    return parse_duration(text) or _refuse("must be greater than 0")


def _parse_limit_rate(text: str) -> int:
    """Parse a rate that servers do not refuse as too slow."""
    rate = parse_rate(text)
    return rate if rate >= _LEAST_RATE_BYTES else _refuse("must be at least 4KiB")


def _refuse(why: str) -> NoReturn:
    raise click.BadParameter(why)


def _parse_month(text: str) -> datetime:
    """Return the beginning of a month, in UTC; accepts `2026-11` and `2026/11`."""
    match = re.fullmatch(r"([0-9]{4})[-/](0[1-9]|1[0-2])", text)
    if not match or match[1] == "0000":
        raise ValueError("not a month such as 2026-11")
    return datetime(int(match[1]), int(match[2]), 1, tzinfo=UTC)


def _parse_when(text: str) -> datetime:
    """Parse a time, or a duration as the time so long ago."""
    with suppress(ValueError):
        return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    try:
        return parse_moment(text, zone=None)
    except ValueError:
        raise ValueError("not a duration such as 2h or a time such as 2026-11-22T13:00:00Z") from None


SIZE, RATE = ParsedType("size", parse_size), ParsedType("rate", parse_rate)
DURATION, LIMIT_RATE = ParsedType("duration", _parse_some_duration), ParsedType("rate", _parse_limit_rate)
MONTH, WHEN = ParsedType("YYYY-MM", _parse_month), ParsedType("when", _parse_when)
