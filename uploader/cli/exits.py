"""How a command ends when it can't go on: a line on standard error and an exit code."""

import sys
from typing import NoReturn

import click

# What both halves of the command line exit with; what a failure exits with is each half's own.
EXIT_OK = 0
EXIT_USAGE = 2  # as click has it
EXIT_CONFIGURATION = 2


def fail(message: str, code: int) -> NoReturn:
    """Say what is wrong and exit with this code."""
    for line in message.splitlines():
        click.echo(f"uploader: {line}", err=True)
    sys.exit(code)
