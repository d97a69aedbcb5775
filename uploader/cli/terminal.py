"""Reads and prints for both halves of the command line: sizes, durations and times as options and for a person, and a line
on standard error with an exit code for what can't go on.

Every other module prints by the functions of this one: names, answers of servers and the output of tools are foreign text,
and none of it may move a cursor, forge a line or hide.
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

# What both halves of the command line exit with; what a failure exits with is each half's own.
EXIT_OK = 0
EXIT_USAGE = 2  # as click has it
EXIT_CONFIGURATION = 2

T = TypeVar("T")

# Servers refuse bodies that come at less than 1 KiB/s.
_LEAST_RATE_BYTES = 4 << 10

# Characters that a terminal obeys, or does not show: controls, lone surrogates, fillers, format characters, tags. A joiner
# between letters of a script that has joiners stays, and so does the first variation selector of a character.
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
# One class of characters, which is looked for in a tenth of the time.
_SUSPECT = re.compile(f"[{_ALWAYS}\u200c\u200d\ufe00-\ufe0f]")
# The one kind of sequence that our own output has inside a line: colours.
_COLOURS = re.compile(r"(\x1b\[[0-9;]*m)")
# Of lines below all others, the first of which stays: tmux takes it for a wish to keep what there is if all of the screen is
# wiped. No line is wrapped while they are drawn, so they are as many on the screen as here.
_WIPE = "\r\x1b[K\n\x1b[J\x1b[A"
_NO_WRAP, _WRAP, _UP = "\x1b[?7l", "\x1b[?7h", "\x1b[A"
# The width of a terminal that tells none.
_USUAL_COLUMNS = 80
# The length at which a line of a command that does not end is printed.
_LINE_CHARACTERS = 4096


def shown(text: str) -> str:
    """Return foreign text as one line that a terminal only shows: each hidden character as JSON would escape it. JSON stays
    the same JSON."""
    if text.isascii() and text.isprintable():
        return text
    return text if _SUSPECT.search(text) is None else _HIDDEN.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def styled(line: str) -> str:
    """Return a line with its colours; all else in it is only shown."""
    return "".join(part if number % 2 else shown(part) for number, part in enumerate(_COLOURS.split(line)))


def say(line: str, *, err: bool = False, is_prose: bool = False) -> None:
    """Print one line. On a terminal a line of prose, and any on standard error, is broken between words."""
    lines = [shown(line)]
    if sys.stderr.isatty() if err else is_prose and sys.stdout.isatty():
        import textwrap  # here, because most lines are no prose for a terminal

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
    """Replace the last line of standard error, which is a terminal."""
    click.echo(f"\r\x1b[K{shown(line)}", err=True, nl=False)


def say_below(lines: list[str], *, over: bool) -> None:
    """Draw lines on standard error, which is a terminal, `over` those before. The cursor rests at the begin of the first,
    an empty one: from there they are wiped by one sequence, whatever a terminal made of them when it got another size, and
    what is typed or echoed there (`^C`) spoils nothing."""
    wipe, drawing = _WIPE if over else "", "\r\n".join(map(styled, lines))
    click.echo(f"{wipe}{_NO_WRAP}{drawing}{_WRAP}\r{_UP * (len(lines) - 1)}", err=True, nl=False)


def wipe_below() -> None:
    click.echo(_WIPE, err=True, nl=False)


def say_csv(lines: str) -> None:
    """Print lines of CSV. CSV has no escapes: a hidden character is shown as in any other line."""
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
    """Say what is wrong and exit with this code."""
    fail_lines([message], code)


def fail_lines(messages: Iterable[str], code: int) -> NoReturn:
    """Say what is wrong, one line each, and exit with this code."""
    for message in messages:
        say(f"uploader: {message}", err=True)
    sys.exit(code)


def drawn(*parts: "RenderableType", width: int | None = None, err: bool = False) -> list[str]:
    """Return tables and texts as lines that are `styled` when they are printed, in the colours that the stream has."""
    from rich.console import Console  # here, because most commands draw nothing

    console = Console(width=width, stderr=err, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(*parts, sep="\n")
    return captured.get().removesuffix("\n").split("\n")


def say_drawn(*parts: "RenderableType", width: int | None = None) -> None:
    """Print tables and texts."""
    for part in parts:
        for line in drawn(part, width=width):
            click.echo(styled(line))


class ForeignOutput:
    """Passes on what a program writes, as it comes: line by line to people, as it is to a standard output that is no
    terminal. A line that does not end is printed in pieces."""

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
    """Have click print what is wrong with a command line in lines that are only shown: its words may be foreign."""
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
    """Have Python only show errors that nobody caught, and what is logged where no log is set up."""
    import logging  # here, because a command that only lists commands needs neither
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
    """Return a size in its unit, and behind it every byte."""
    return f"{size_bytes} bytes" if size_bytes < 1000 else f"{human_bytes(size_bytes)} ({size_bytes} bytes)"


def human_seconds(seconds: float) -> str:
    """Return the two largest units that matter."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, length, smaller, smaller_length in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // smaller_length} {smaller}"
    return f"{whole} s"


def percent(part: int, whole: int) -> str:
    """Write a share in whole percent; a share of nothing is 100 %."""
    return f"{100 * part // whole if whole else 100} %"


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return a path as text; names that are no UTF-8 are shown as near as can be."""
    return os.fsdecode(path).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class ParsedType(click.ParamType[T]):
    """An option that a parser reads; its ValueError is bad usage."""

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
    """Bytes a second that bodies are not refused for."""
    rate = parse_rate(text)
    return rate if rate >= _LEAST_RATE_BYTES else _refuse("must be at least 4KiB")


def _refuse(why: str) -> NoReturn:
    raise click.BadParameter(why)


def _parse_month(text: str) -> datetime:
    """Return the begin, in UTC, of a month as `2026-11` or `2026/11`."""
    match = re.fullmatch(r"([0-9]{4})[-/](0[1-9]|1[0-2])", text)
    if not match or match[1] == "0000":
        raise ValueError("not a month such as 2026-11")
    return datetime(int(match[1]), int(match[2]), 1, tzinfo=UTC)


def _parse_when(text: str) -> datetime:
    """Parse a moment, or how long ago it was."""
    with suppress(ValueError):
        return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    try:
        return parse_moment(text, zone=None)
    except ValueError:
        raise ValueError("not a duration such as 2h or a time such as 2026-11-22T13:00:00Z") from None


SIZE, RATE = ParsedType("size", parse_size), ParsedType("rate", parse_rate)
DURATION, LIMIT_RATE = ParsedType("duration", _parse_some_duration), ParsedType("rate", _parse_limit_rate)
MONTH, WHEN = ParsedType("YYYY-MM", _parse_month), ParsedType("when", _parse_when)
