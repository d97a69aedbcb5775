"""`uploader queue work`: runs a command for each task of a queue."""

import asyncio
import json
import os
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import click

from uploader.cli.client.connection import kept_profile
from uploader.cli.client.events import exit_code_of
from uploader.cli.terminal import EXIT_CONFIGURATION, fail
from uploader.client import AsyncTask, ClientError, Worker

_PATH, _NAME = "{path}", "{name}"
# Of what a command that fails has said, the end goes with the task.
_MOST_SAID = 500


class CommandFailed(Exception):
    """The command has ended with another exit code than 0."""


@click.command()
@click.argument("queue")
@click.argument("command", nargs=-1, required=True)
@click.option("--lease", default="10m", show_default=True, help="Hold a task for so long.")
@click.option("--at-once", type=click.IntRange(1, 100), default=1, show_default=True, help="Run so many at once.")
@click.option("--refuse-on", type=click.IntRange(1, 255), help="Refuse the file at this exit code.")
def work(queue: str, command: tuple[str, ...], lease: str, at_once: int, refuse_on: int | None) -> None:
    """Run COMMAND for each task of QUEUE, until SIGTERM. {path} is a temporary file with the content, {name} the last
    segment of its name, UPLOADER_TASK the task as JSON. Exit code 0 ends a task; any other one gives it back.
    """
    profile = kept_profile() or fail("nobody is logged in: set UPLOADER_URL and UPLOADER_TOKEN", EXIT_CONFIGURATION)
    worker = Worker(profile.url, profile.token, on_retry=lambda error, _: click.echo(error.detail, err=True))

    async def handle(task: AsyncTask) -> None:
        reason = await _run(command, task, refuse_on)
        if reason is not None:
            task.refuse(reason)
        click.echo(f"{task.event['subject']} {'done' if reason is None else 'refused'}")

    try:
        worker.handles(queue, lease=lease, at_once=at_once)(handle)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--lease") from error
    try:
        worker.run()
    except ClientError as error:
        click.echo(error.detail, err=True)
        sys.exit(exit_code_of(error))


async def _run(command: tuple[str, ...], task: AsyncTask, refuse_on: int | None) -> str | None:
    """Return why the file is to be refused, if it is. Raises CommandFailed."""
    with tempfile.TemporaryDirectory(prefix="uploader-task-") as directory:
        words, name, path = list(command), "", Path(directory) / "content"
        if any(_PATH in word or _NAME in word for word in words):
            name = task.file.name.rpartition("/")[2]
            if any(_PATH in word for word in words):
                await task.save(path)
            words = [word.replace(_PATH, str(path)).replace(_NAME, name) for word in words]
        facts = {"id": task.id, "fence": task.fence, "attempt": task.attempt, "event": task.event}
        told = {**os.environ, "UPLOADER_TASK": json.dumps(facts)}
        stdout = None if refuse_on is None else PIPE
        process = await asyncio.create_subprocess_exec(*words, stdin=DEVNULL, stdout=stdout, stderr=PIPE, env=told)
        try:
            printed, said = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
    sys.stdout.buffer.write(printed or b"")
    sys.stderr.buffer.write(said)
    if process.returncode == refuse_on:
        lines = [line for line in (said + (printed or b"")).decode(errors="replace").splitlines() if line.strip()]
        # Of the file, and not of where it was for a while.
        return lines[-1].strip().replace(str(path), name) if lines else f"exit code {refuse_on}"
    if process.returncode:
        last = said[-_MOST_SAID:].decode(errors="replace").strip()
        raise CommandFailed(f"exit code {process.returncode}: {last}")
    return None
