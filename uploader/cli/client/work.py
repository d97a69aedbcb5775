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
def work(queue: str, command: tuple[str, ...], lease: str, at_once: int) -> None:
    """Run COMMAND for each task of QUEUE, until SIGTERM. {path} is a temporary file with the content, {name} the last
    segment of its name, UPLOADER_TASK the task as JSON. Exit code 0 ends a task; any other one gives it back.
    """
    profile = kept_profile() or fail("nobody is logged in: set UPLOADER_URL and UPLOADER_TOKEN", EXIT_CONFIGURATION)
    worker = Worker(profile.url, profile.token, on_retry=lambda error, _: click.echo(error.detail, err=True))

    async def handle(task: AsyncTask) -> None:
        await _run(command, task)
        click.echo(f"{task.event['subject']} done")

    try:
        worker.handles(queue, lease=lease, at_once=at_once)(handle)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--lease") from error
    try:
        worker.run()
    except ClientError as error:
        click.echo(error.detail, err=True)
        sys.exit(exit_code_of(error))


async def _run(command: tuple[str, ...], task: AsyncTask) -> None:
    with tempfile.TemporaryDirectory(prefix="uploader-task-") as directory:
        words = list(command)
        if any(_PATH in word or _NAME in word for word in words):
            name = task.file.name.rpartition("/")[2]
            path = Path(directory) / "content"
            if any(_PATH in word for word in words):
                await task.save(path)
            words = [word.replace(_PATH, str(path)).replace(_NAME, name) for word in words]
        facts = {"id": task.id, "fence": task.fence, "attempt": task.attempt, "event": task.event}
        told = {**os.environ, "UPLOADER_TASK": json.dumps(facts)}
        process = await asyncio.create_subprocess_exec(*words, stdin=DEVNULL, stderr=PIPE, env=told)
        try:
            _, said = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
    sys.stderr.buffer.write(said)
    if process.returncode:
        last = said[-_MOST_SAID:].decode(errors="replace").strip()
        raise CommandFailed(f"exit code {process.returncode}: {last}")
