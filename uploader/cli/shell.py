"""Shell completion, and manual pages. Completion is click's own, except that Bash gets names on the server marked: Bash then
quotes such a name like a file name, and adds no space after a final slash. zsh and fish quote by themselves.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from uploader import __version__
from uploader.cli import commands_of
from uploader.cli.terminal import EXIT_USAGE, fail, say

_SOURCE = """\
%(complete_func)s() {
    local type value
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            name)
                COMPREPLY+=("$value")
                compopt -o filenames
                if [[ $value == */ ]]; then compopt -o nospace; fi
                ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(IFS=$'\\n'; COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@add_completion_class
class Bash(BashComplete):
    """Completion for Bash: `_UPLOADER_COMPLETE=bash_source` prints the script."""

    source_template = _SOURCE

    def format_completion(self, item: "CompletionItem[Any]") -> str:
        return f"{'name' if item.is_name else item.type},{item.value}"


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def man(directory: Path) -> None:
    """Write the manual pages into a directory.

    In ~/.local/share/man/man1 `man uploader` and `man uploader-put` find them, in /usr/local/share/man/man1 for all users. A
    directory that is not there is made.
    """
    root = click.get_current_context().find_root()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in pages(root.command):
            (directory / name).write_text(text)
            say(str(directory / name))
    except OSError as error:
        fail(f"{error.filename} can't be written: {error.strerror}", EXIT_USAGE)


def pages(root: click.Command) -> Iterator[tuple[str, str]]:
    """Yield file name and text of the manual page of a command and of each of its subcommands."""
    for context in _contexts(click.Context(root, info_name="uploader", **root.context_settings)):
        yield f"{_page_of(context)}.1", "\n".join(_lines(context)) + "\n"


def _contexts(context: click.Context) -> Iterator[click.Context]:
    yield context
    for below in _below(context):
        yield from _contexts(below)


def _below(context: click.Context) -> list[click.Context]:
    if not isinstance(context.command, click.Group):
        return []
    return [click.Context(each, parent=context, info_name=name) for name, each in commands_of(context.command).items()]


def _page_of(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _lines(context: click.Context) -> Iterator[str]:
    command, name = context.command, _page_of(context)
    usage = " ".join(command.collect_usage_pieces(context))
    yield f'.TH "{_text(name.upper())}" 1 "" "uploader {_text(__version__)}" "uploader"'
    yield ".SH NAME"
    yield f"{_text(name)} \\- {_text(command.get_short_help_str(limit=200).rstrip('.'))}"
    yield ".SH SYNOPSIS"
    yield f"\\fB{_text(context.command_path)}\\fR {_text(usage)}"
    yield ".SH DESCRIPTION"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):  # as click parses a help text
        kept = paragraph.startswith("\b\n")  # click keeps the line breaks of such a paragraph
        lines = paragraph.removeprefix("\b\n").splitlines()
        yield ".PP"
        yield from [".nf", *map(_text, lines), ".fi"] if kept else [_text(" ".join(lines))]
    yield ".SH OPTIONS"
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1]:
            yield from (".TP", f"\\fB{_text(record[0])}\\fR", _text(record[1]))
    if below := _below(context):
        yield ".SH COMMANDS"
        for each in below:
            yield from (".TP", f"\\fB{_text(_page_of(each))}\\fR(1)", _text(each.command.get_short_help_str(limit=200)))
    if context.parent is not None:
        yield from (".SH SEE ALSO", f"\\fB{_text(_page_of(context.parent))}\\fR(1)")


def _text(text: str) -> str:
    """Escape text for groff: backslashes, hyphens, and lines that would begin a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    escaped = re.sub(r"[^\x00-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", escaped)
    return re.sub(r"^(?=\.)", "\\&", escaped)
