"""The pages that are made from the code: `python -m tests.support.reference` writes docs/commands.md and
docs/configuration.md anew, between their marks, and docs/events.schema.json."""

import inspect
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import click
import msgspec

from uploader import cli
from uploader.cli.client.events import Event
from uploader.settings import Settings, variable_of

DOCS = Path(__file__).parents[2] / "docs"


def pages() -> dict[Path, str]:
    """What has to stand in each of them."""
    made = {
        DOCS / "configuration.md": {"settings": _settings()},
        DOCS / "commands.md": {
            "server": "\n".join(_commands(of_server=True)),
            "client": "\n".join(_commands(of_server=False)),
        },
    }
    filled = {path: _filled(path.read_text(), parts) for path, parts in made.items()}
    return {**filled, DOCS / "events.schema.json": _schema()}


def _schema() -> str:
    """The JSON Schema of one event."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "An event of a client command"}
    return json.dumps(head | _cleaned(msgspec.json.schema(reduce(or_, Event.__subclasses__()))), indent=2) + "\n"


def _cleaned(part: Any) -> Any:
    """Return it with docstrings indented as Python 3.13 has them, on every Python."""
    if isinstance(part, dict):
        return {
            name: inspect.cleandoc(each) if name == "description" else _cleaned(each) for name, each in part.items()
        }
    return [_cleaned(each) for each in part] if isinstance(part, list) else part


def _filled(text: str, parts: dict[str, str]) -> str:
    for name, part in parts.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{part}\n{end}{rest.partition(end)[2]}"
    return text


def _settings() -> str:
    rows = ["| name | default | what it does |", "|---|---|---|"]
    for setting in fields(Settings):
        default = setting.metadata["default"]
        shown = "unset" if default is None else f"`{default}`"
        rows.append(f"| `{variable_of(setting)}` | {shown} | {setting.metadata['about']} |")
    return "\n".join(rows)


def _commands(*, of_server: bool) -> Iterator[str]:
    root = click.Context(cli.main, info_name="uploader", **cli.main.context_settings)
    for name, command in cli.commands_of(cli.main).items():
        if cli.is_of_server(cli.main.commands[name]) == of_server:
            yield from _described(click.Context(command, parent=root, info_name=name))


def _described(context: click.Context) -> Iterator[str]:
    command = context.command
    if isinstance(command, click.Group):
        for name, below in cli.commands_of(command).items():
            yield from _described(click.Context(below, parent=context, info_name=name))
        return
    arguments = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
    yield f"\n### `{' '.join([context.command_path, *arguments])}`\n"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        kept = paragraph.startswith("\b\n")
        lines = paragraph.removeprefix("\b\n").splitlines()
        yield ("\n".join(["```", *lines, "```"]) if kept else " ".join(lines)) + "\n"
    options = [each for each in command.params if isinstance(each, click.Option)]
    records = [record for each in options if (record := each.get_help_record(context)) is not None]  # None: hidden
    if records:
        yield from ("| option | what it does |", "|---|---|")
        yield from (f"| `{_cell(name)}` | {_cell(meaning)} |" for name, meaning in records)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", r"\|")


if __name__ == "__main__":
    for path, text in pages().items():
        changed = path.read_text() != text
        path.write_text(text)
        print(path.relative_to(DOCS.parent), "written anew" if changed else "as it was", file=sys.stderr)
