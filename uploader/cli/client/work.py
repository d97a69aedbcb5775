"""`uploader queue work`: runs a command for each task of a queue. A file's name is foreign text; it never becomes part of a
text that a shell or an interpreter runs.
"""

import asyncio
import json
import os
import re
import string
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path, PurePath

import click

from uploader.cli.client.connection import kept_profile
from uploader.cli.client.events import exit_code_of
from uploader.cli.terminal import EXIT_CONFIGURATION, EXIT_USAGE, ForeignOutput, fail, say
from uploader.client import AsyncTask, BadAnswer, ClientError, NotFound, Worker
from uploader.client.plan import checked_name

_PATH, _NAME = "{path}", "{name}"
_PATH_VARIABLE, _NAME_VARIABLE = "UPLOADER_PATH", "UPLOADER_NAME"
# The last characters of a failed command's standard error, which are reported with the task.
_MOST_SAID = 500
_BLOCK_BYTES, _KEPT_BYTES = 64 << 10, 4096
# Letters of options that run the next argument: `sh -c`, `bash -lc`, `perl -E`, `--eval`.
_RUNNING = frozenset("ceCE")
_SHELL = frozenset(string.whitespace + "|&;<>()[]{}$`\\\"'*?!#") - {os.sep}
# Programs that join their arguments into a text for a shell; Windows does the same for batch files.
_JOINING = frozenset(("cmd", "powershell", "pwsh", "rsh", "ssh"))
_COMMAND_FILES = (".bat", ".cmd")


class CommandFailed(Exception):
    """The command has ended with another exit code than 0."""


@click.command()
@click.argument("queue")
@click.argument("command", nargs=-1, required=True)
@click.option("--lease", default="10m", show_default=True, help="Hold a task for so long.")
@click.option("--at-once", type=click.IntRange(1, 100), default=1, show_default=True, help="Run so many at once.")
@click.option("--refuse-on", type=click.IntRange(1, 255), help="Refuse the file at this exit code.")
@click.option("--no-content", is_flag=True, help="Download nothing.")
def work(
    queue: str, command: tuple[str, ...], lease: str, at_once: int, refuse_on: int | None, no_content: bool
) -> None:
    """Run COMMAND for each task of QUEUE, until SIGTERM. {path} is a temporary file with the content, {name} the last
    segment of its name; a shell takes them from "$UPLOADER_PATH" and "$UPLOADER_NAME". UPLOADER_TASK is the task as JSON.
    Exit code 0 ends a task; any other one gives it back."""
    if (why := why_unsafe(command)) is not None:
        detail = f"{why}: a file's name could be run there; take it from the environment, as {_NAME_VARIABLE}"
        fail(detail, EXIT_USAGE)
    if no_content and any(_PATH in word for word in command):
        fail("{path} is the content, which --no-content leaves out", EXIT_USAGE)
    profile = kept_profile() or fail("nobody is logged in: set UPLOADER_URL and UPLOADER_TOKEN", EXIT_CONFIGURATION)
    worker = Worker(profile.url, profile.token, on_retry=lambda error, _: say(error.detail, err=True))

    async def handle(task: AsyncTask) -> None:
        reason = await _run(command, task, refuse_on, with_content=not no_content)
        if reason is not None:
            task.refuse(reason)
        say(f"{task.event['subject']} {'done' if reason is None else 'refused'}")

    try:
        worker.handles(queue, lease=lease, at_once=at_once)(handle)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--lease") from error
    try:
        worker.run()
    except ClientError as error:
        say(error.detail, err=True)
        sys.exit(exit_code_of(error))
    except ValueError as error:  # invalid URL
        fail(str(error), EXIT_CONFIGURATION)


def why_unsafe(command: Sequence[str]) -> str | None:
    """Return the reason why `{name}` is unsafe in a command; None if safe. `{path}` is safe everywhere: this program makes
    the path, without foreign parts."""
    for number, word in enumerate(command):
        if _NAME not in word:
            continue
        if number == 0:
            return "{name} is the program"
        before = command[:number]
        if not _SHELL.isdisjoint(word.replace(_NAME, "").replace(_PATH, "")):
            return f"{word!r} has characters of a shell beside {{name}}"
        options = [*takewhile(_is_option, reversed(before)), *([word.partition(_NAME)[0]] if _is_option(word) else [])]
        for option in options:
            if not _RUNNING.isdisjoint(option.replace(_NAME, "").replace(_PATH, "")):
                return (
                    f"{option!r} before {{name}} has a c or an e among its letters, as options before a program's text"
                )
        for each in before:
            program = PurePath(each.replace("\\", "/")).name.lower()
            if program.removesuffix(".exe") in _JOINING or program.endswith(_COMMAND_FILES):
                return f"{each!r} gives its arguments to a shell"
    return None


def _is_option(word: str) -> bool:
    return word.startswith(("-", "+")) or re.fullmatch("/[A-Za-z]", word) is not None


def _filled(word: str, name: str, path: str) -> str:
    """Insert name and path. A name at the beginning of a word cannot become an option."""
    values = {_PATH: path, _NAME: _no_option(name) if word.startswith(_NAME) else name}
    return "".join(values.get(part, part) for part in re.split(r"(\{path\}|\{name\})", word))


def _no_option(name: str) -> str:
    return f"./{name}" if name.startswith("-") else name


async def _run(command: tuple[str, ...], task: AsyncTask, refuse_on: int | None, *, with_content: bool) -> str | None:
    """Run the command. Return the reason to refuse the file, or None. Raises CommandFailed."""
    needs_path = any(_PATH in word or _PATH_VARIABLE in word for word in command)
    needs_file = needs_path or any(_NAME in word or _NAME_VARIABLE in word for word in command)
    with tempfile.TemporaryDirectory(prefix="uploader-task-") as directory:
        name, path = "", Path(directory) / "content"
        facts = {"id": task.id, "fence": task.fence, "attempt": task.attempt, "event": task.event}
        told = {name: value for name, value in os.environ.items() if name not in (_PATH_VARIABLE, _NAME_VARIABLE)}
        told["UPLOADER_TASK"] = json.dumps(facts)
        try:
            file = task.file
        except BadAnswer:  # the event is not about a file
            if needs_file:
                raise
        else:
            # The check rejects NUL characters, and names longer than the environment allows.
            name = checked_name(file.name).rpartition("/")[2]
            told[_NAME_VARIABLE] = _no_option(name)
            if with_content:
                try:
                    told[_PATH_VARIABLE] = str(await task.save(path))
                except NotFound:  # the file was deleted
                    if needs_path:
                        raise
        words = [_filled(word, name, str(path)) for word in command]
        output, errors = ForeignOutput(err=False), ForeignOutput(err=True)
        stdout = None if refuse_on is None and not sys.stdout.isatty() else PIPE
        process = await asyncio.create_subprocess_exec(*words, stdin=DEVNULL, stdout=stdout, stderr=PIPE, env=told)
        try:
            printed, said, _ = await asyncio.gather(
                _passed_on(process.stdout, output.write), _passed_on(process.stderr, errors.write), process.wait()
            )
        except BaseException:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        finally:
            output.close()
            errors.close()
    if process.returncode == refuse_on:
        lines = [line for line in (said + printed).decode(errors="replace").splitlines() if line.strip()]
        # Show the file's name instead of the temporary path.
        return lines[-1].strip().replace(str(path), name) if lines else f"exit code {refuse_on}"
    if process.returncode:
        last = said[-_MOST_SAID:].decode(errors="replace").strip()
        raise CommandFailed(f"exit code {process.returncode}: {last}")
    return None


async def _passed_on(stream: asyncio.StreamReader | None, write: Callable[[bytes], None]) -> bytes:
    """Pass the blocks of a stream on as they come; return the end of the stream."""
    end = b""
    while stream is not None and (block := await stream.read(_BLOCK_BYTES)):
        write(block)
        end = (end + block)[-_KEPT_BYTES:]
    return end
