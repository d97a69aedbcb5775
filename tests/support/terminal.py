"""A real terminal: tmux, with a command in its one pane, whose lines are read as a person sees them."""

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.waiting import eventually

_HISTORY_LINES = 10_000
ENDED = "it ended with"


def tmux_path() -> str | None:
    return shutil.which("tmux")


class Terminal:
    """One pane in a tmux of its own."""

    def __init__(self, socket: Path, environment: Mapping[str, str]) -> None:
        self._socket = socket
        self._environment = environment

    async def tmux(self, *arguments: str) -> str:
        """What a command of tmux prints."""
        process = await asyncio.create_subprocess_exec(
            "tmux",
            *("-f", "/dev/null", "-S", str(self._socket), *arguments),
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output = (await process.communicate())[0].decode()
        assert process.returncode == 0, output
        return output

    async def lines(self) -> list[str]:
        """All that is to be seen, and what was scrolled away above it; what was wrapped is one line again."""
        captured = await self.tmux("capture-pane", "-p", "-J", "-S", "-")
        lines = [line.rstrip() for line in captured.splitlines()]
        return lines[: len(lines) - next((n for n, line in enumerate(reversed(lines)) if line), len(lines))]

    async def shows(self, condition: Callable[[list[str]], bool]) -> list[str]:
        """The lines, as soon as they are as they should be."""
        seen: list[str] = []

        async def is_so() -> bool:
            seen[:] = await self.lines()
            return condition(seen)

        try:
            await eventually(is_so)
        except TimeoutError:
            raise AssertionError("\n".join(seen)) from None
        return seen

    async def after_the_end(self, code: int = 0) -> list[str]:
        """What stays on the terminal of a command that ended so."""
        lines = await self.shows(lambda lines: any(line.startswith(ENDED) for line in lines))
        assert lines[-1] == f"{ENDED} {code}", "\n".join(lines)
        return lines[:-1]

    async def resize(self, columns: int, rows: int) -> None:
        await self.tmux("resize-window", "-x", str(columns), "-y", str(rows))

    async def press(self, key: str) -> None:
        await self.tmux("send-keys", key)


@asynccontextmanager
async def running_in_terminal(
    command: str, environment: Mapping[str, str], cwd: Path, *, columns: int = 80, rows: int = 24
) -> AsyncIterator[Terminal]:
    """A command of the shell, and then how it ended."""
    with TemporaryDirectory() as directory:
        terminal = Terminal(Path(directory) / "tmux", {**environment, "TERM": "xterm-256color"})
        shell = f"trap : INT; {command}\necho {ENDED} $?; exec cat"
        await terminal.tmux(
            *("start-server", ";", "set", "-g", "history-limit", str(_HISTORY_LINES), ";"),
            *("new-session", "-d", "-x", str(columns), "-y", str(rows), "-c", str(cwd), "sh", "-c", shell),
        )
        try:
            yield terminal
        finally:
            with contextlib.suppress(AssertionError):
                await terminal.tmux("kill-server")
