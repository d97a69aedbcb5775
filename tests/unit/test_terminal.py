"""Foreign text on its way to a person and to a program: what is printed, given to a command, and written as a name here."""

import ast
import json
import re
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants.places import parsed
from tests.support.process import run_program
from uploader import cli
from uploader.cli.client.work import _filled, why_unsafe
from uploader.cli.terminal import ForeignOutput, shown, styled
from uploader.client.errors import HiddenName
from uploader.client.plan import check_strangers_path

PACKAGE = Path(cli.__file__).parents[1]
TERMINAL = "cli/terminal.py"

# Text

# Format characters that stay: between letters of a script that has joiners, and in what is drawn beside the text.
VISIBLE_FORMATS = "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd\U00013430-\U0001343f"


def test_shown_text_has_no_character_that_a_terminal_obeys_or_hides() -> None:
    for code in range(0x110000):
        kind = unicodedata.category(chr(code))
        if kind in ("Cc", "Cf", "Cs", "Zl", "Zp") and not re.match(f"[{VISIBLE_FORMATS}]", chr(code)):
            text = shown(f"a{chr(code)}b")
            assert text.isascii() and text.isprintable() and json.loads(f'"{text}"') == f"a{chr(code)}b", hex(code)
    for filler in "\u034f\u115f\u1160\u17b4\u180b\u2065\u3164\uffa0\U000e0100\U000e0fff":
        assert shown(f"a{filler}").startswith("a\\u")


@pytest.mark.parametrize(
    "text", ["plain", "Ä ñ 中文 日本", "👨\u200d👩\u200d👧", "❤\ufe0f", "می\u200cخواهم", "a\u0301"]
)
def test_shown_text_keeps_what_people_write(text: str) -> None:
    assert shown(text) == text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a\u200db", "a\\u200db"),
        ("中\u200d\u200d中", "中\\u200d\\u200d中"),
        ("❤\ufe0f\ufe0f", "❤\ufe0f\\ufe0f"),
        ("\U000e0041", "\\udb40\\udc41"),
        ("two\nlines\r\x1b[2J", "two\\u000alines\\u000d\\u001b[2J"),
    ],
)
def test_shown_text_escapes_what_hides_data(text: str, escaped: str) -> None:
    assert shown(text) == escaped == shown(escaped)


def test_drawn_lines_keep_colours_alone() -> None:
    assert (
        styled("\x1b[1;32mok\x1b[0m \x1b]0;title\x07\x1b[2J") == "\x1b[1;32mok\x1b[0m \\u001b]0;title\\u0007\\u001b[2J"
    )


def test_foreign_output_is_printed_by_lines_and_held_to_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    output = ForeignOutput(err=True)
    for block in (b"one\r\ntw", b"o\xc3", b"\xa4\x1b[2J\xff\n", b"\n"):
        output.write(block)
    assert capsys.readouterr().err == "one\ntwoä\\u001b[2J\ufffd\n\n"
    for _ in range(100):
        output.write(b"x" * 10_000)
        assert len(output._held) <= 4096
    output.close()
    printed = capsys.readouterr().err
    assert printed.count("x") == 1_000_000 and max(map(len, printed.split("\n"))) == 4096


def test_errors_that_nobody_caught_are_only_shown() -> None:
    code = """
import logging, threading
from uploader.cli.terminal import guard_traces
def fail(): raise ValueError("owned" + chr(27) + chr(0x9b))
class Last:
    def __del__(self): fail()
guard_traces()
threading.Thread(target=fail).start()
Last()
logging.getLogger("x").error(chr(0x202e), exc_info=ValueError(chr(27)))
fail()"""
    run = run_program([sys.executable, "-c", code], check=False)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.count(r"ValueError: owned\u001b\u009b") == 3 and not re.search("[\x1b\x9b\u202e]", run.stderr)


# Print statements

_CLICK = {"echo", "secho", "echo_via_pager", "prompt", "confirm", "progressbar", "edit", "launch", "style"}
_CLICK |= {"get_text_stream", "get_binary_stream"}
_PRINTING = {
    "print",
    "input",
    "pprint",
    "getpass",
    "print_exc",
    "print_exception",
    "print_tb",
    "print_stack",
    "dump_traceback",
}
_PRINTING |= {"StreamHandler", "Console", "rprint", "showwarning", "breakpoint"}
_STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}
_SAFE_CALLS = {"shown", "styled", "len"}
_NUMBERS = {"exit_code_of", "worst_of", "code"}
# Uses of the standard streams that print nothing foreign, each with its reason.
ALLOWED = {
    ("cli/__init__.py", "for stream in (sys.stdout, sys.stderr)"): "sets how they encode",
    (TERMINAL, "sys.stdout.buffer.write(block)"): "the output of a command where nobody looks",
    (TERMINAL, "sys.stdout.flush()"): "likewise",
    (TERMINAL, "console.print(*parts, sep='\\n')"): "into a string, which is printed styled",
    ("runtime/observability.py", "handler = LineHandler(sys.stderr)"): "logs, whose formatters escape",
}


def unsafe_prints(source: str, module: str) -> Iterator[str]:
    """Yield each statement that prints otherwise than by the functions of `terminal.py`, or there otherwise than shown."""
    tree = parsed(source)
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            pairs = [(node.targets[0], node.value)]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(node.targets[0].elts, node.value.elts, strict=True))
            for target, value in pairs:
                assigned.setdefault(ast.unparse(target), []).append(value)

    def is_safe(node: ast.expr) -> bool:
        match node:
            case ast.Constant():
                return True
            case ast.Name(id=name):
                return bool(assigned.get(name)) and all(map(is_safe, assigned[name]))
            case ast.Call(func=ast.Name(id="map"), args=[ast.Name(id=name), _]):
                return name in _SAFE_CALLS
            case ast.Call(func=ast.Name(id=name)):
                return name in _SAFE_CALLS
            case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="join"), args=[joined]):
                return is_safe(joined)
            case ast.JoinedStr(values=parts) | ast.Tuple(elts=parts):
                return all(map(is_safe, parts))
            case ast.FormattedValue(value=value):
                return is_safe(value)
            case ast.BinOp(left=left, right=right):
                return is_safe(left) and is_safe(right)
            case ast.IfExp(body=body, orelse=other):
                return is_safe(body) and is_safe(other)
        return False

    def statement(node: ast.AST) -> str:
        while not isinstance(node, ast.stmt):
            node = parents[node]
        text = ast.unparse(node).split("\n")[0]
        return text.removesuffix(":")

    def is_number(node: ast.expr) -> bool:
        match node:
            case ast.Constant(value=int() | None):
                return True
            case ast.IfExp(body=body, orelse=other):
                return is_number(body) and is_number(other)
            case (
                ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))
                | ast.Name(id=name)
                | ast.Attribute(attr=name)
            ):
                return name in _NUMBERS or name.startswith("EXIT_")
        return False

    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="click" | "click.termui" | "click.utils", names=names):
                bad = any(name.name in _CLICK for name in names)
            case ast.ImportFrom(module="sys", names=names):
                bad = any(name.name in _STREAMS for name in names)
            case ast.ImportFrom(names=names):
                bad = module != TERMINAL and any(name.name in _PRINTING for name in names)
            case ast.Attribute(value=ast.Name(id="sys"), attr=attr) if attr in _STREAMS:
                parent = parents[node]
                bad = not (isinstance(parent, ast.Attribute) and parent.attr in ("isatty", "fileno"))
            case ast.Call(func=ast.Attribute(value=ast.Name(id="click"), attr=attr), args=args) if attr in _CLICK:
                bad = module != TERMINAL or not all(map(is_safe, args))
            case ast.Call(func=ast.Name(id="getattr"), args=[ast.Name(id="sys" | "click"), *_]):
                bad = True
            case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="write"), args=[ast.Constant(), *_]):
                bad = True
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="sys"), attr="exit") | ast.Name(id="SystemExit"), args=args
            ):
                bad = not all(map(is_number, args))
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _PRINTING:
                bad = module != TERMINAL or name != "Console"
            case _:
                bad = False
        if bad:
            yield statement(node)


def test_no_module_prints_foreign_text_otherwise_than_by_the_terminal() -> None:
    found = {
        (module, code)
        for path in sorted(PACKAGE.rglob("*.py"))
        for module in [path.relative_to(PACKAGE).as_posix()]
        for code in unsafe_prints(path.read_text(), module)
    }
    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    "code",
    [
        "print(name)",
        "import click\nclick.echo(name)",
        "import click\nclick.secho(f'{name}', err=True)",
        "from click import echo",
        "import sys\nsys.stderr.write(name)",
        "import sys\nwrite = sys.stdout.write",
        "from sys import stderr",
        "import os\nos.write(2, name)",
        "import sys\nsys.exit(f'no {name}')",
        "raise SystemExit(name)",
        "from rich.console import Console",
        "import rich.console\nrich.console.Console().print(name)",
        "import traceback\ntraceback.print_exc()",
        "import logging\nlogging.StreamHandler()",
        "import click\nclick.prompt(name)",
        "import sys\ngetattr(sys, 'stdout').write(name)",
    ],
)
def test_new_print_statement_is_found(code: str) -> None:
    assert [*unsafe_prints(code, "cli/new.py")]


@pytest.mark.parametrize("code", ["click.echo(line)", "click.echo(f'{shown(line)} {name}')", "click.prompt(question)"])
def test_terminal_itself_prints_shown_text_alone(code: str) -> None:
    assert [*unsafe_prints(code, TERMINAL)]
    assert not [*unsafe_prints("click.echo(f'uploader: {shown(line)}', err=err)", TERMINAL)]


# Commands for tasks


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", "echo {name}"],
        ["sh", "-c", "{name}"],
        ["sh", "-c{name}"],
        ["bash", "-lc", "{name}"],
        ["bash", "-c", "-x", "{name}"],
        ["bash", "-c", "+x", "--", "{name}"],
        ["perl", "-E", "{name}"],
        ["perl", "-ne", "{name}"],
        ["tool", "--eval={name}"],
        ["tool", "--exec", "{name}"],
        ["tool", "--command", "{name}"],
        ["cmd", "/c", "{name}"],
        ["cmd.exe", "/C", "echo", "{name}"],
        ["nice", "/usr/bin/ssh", "host", "convert", "{name}"],
        ["C:\\tools\\scan.BAT", "{name}"],
        ["{name}", "x"],
        *(["tool", f"a{character}{{name}}"] for character in " \t\n;|&<>()$`\"'*?[]#!"),
        ["tool", "{name}\\"],
        ["tool", "$(x {path})/{name}"],
    ],
)
def test_command_that_would_run_a_name_is_refused(command: list[str]) -> None:
    assert why_unsafe(command)


@pytest.mark.parametrize(
    "command",
    [
        ["convert", "{path}", "-thumbnail", "256x256", "thumbnails/{name}.jpg"],
        ["cp", "{path}", "{name}"],
        ["sh", "-c", 'cp "$0" copies/"$1"', "{path}", "{name}"],
        ["sh", "-c", "clamdscan {path} | logger"],
        ["sh", "-c", 'echo "$UPLOADER_NAME"'],
        ["tool", "-o", "{name}"],
        ["tool", "--output={name}", "~/{name}", "a,{name}@{path}"],
    ],
)
def test_command_that_takes_a_name_as_data_is_allowed(command: list[str]) -> None:
    assert why_unsafe(command) is None


def test_name_in_a_command_is_no_option_and_no_placeholder() -> None:
    assert _filled("{name}", "-rf", "/tmp/x") == "./-rf"
    assert _filled("{name}.jpg", "-rf", "/tmp/x") == "./-rf.jpg"
    assert _filled("thumbnails/{name}.jpg", "-rf", "/tmp/x") == "thumbnails/-rf.jpg"
    assert _filled("{name} {path}", "{path}", "/tmp/x") == "{path} /tmp/x"


# Names that strangers chose


@pytest.mark.parametrize(
    "path",
    [
        ".bashrc",
        ".ssh/authorized_keys",
        "a/.git/config",
        "a/..b",
        "\u200c.ssh/x",
        "CON",
        "a/nul.txt",
        "com1/x",
        "Aux .c",
        "a\x1b[2J",
    ],
)
def test_hidden_path_of_a_stranger_is_refused(path: str) -> None:
    with pytest.raises(HiddenName):
        check_strangers_path(path)


@pytest.mark.parametrize("path", ["a.txt", "a/b.c", "console", "a-b/-c", "Re: hello?.eml", "com0x"])
def test_ordinary_path_of_a_stranger_is_taken(path: str) -> None:
    check_strangers_path(path)
