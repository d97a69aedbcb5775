"""Lines below all others on a terminal, drawn again and again, and gone in the end. Knows nothing of what they say.

The cursor rests at the begin of the first of them, an empty one: from there they are wiped by one sequence, whatever a
terminal made of them when it got another size, and what is typed or echoed there (`^C`) spoils nothing. While they are
drawn no line is wrapped, so they are as many on the screen as here. None is as wide as most terminals, which wrap what they
have when they get narrower, and may push the cursor off its line then.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TextIO

import click

_INTERVAL_SECONDS = 0.125
# Below the empty line, as tmux takes it for a wish to keep what there is if all of the screen is wiped.
_WIPE = "\r\x1b[K\n\x1b[J\x1b[A"
WIDEST_COLUMNS = 79
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
# Those that would leave the lines behind: to be stopped by Ctrl-Z, and to be ended.
_LEAVING = (signal.SIGTSTP, signal.SIGTERM, signal.SIGHUP)

Lines = Callable[[int, int], list[str]]


class Live:
    """On standard error. `lock` is held while `lines` is asked, for a width and a height."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._terminal = sys.stderr
        self.lock = threading.RLock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._shown: list[str] = []
        self._caught: list[signal.Signals] = []

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """From the main thread."""
        self._caught = [number for number in _LEAVING if signal.getsignal(number) is signal.SIG_DFL]
        for number in self._caught:
            signal.signal(number, self._step_aside)
        self._thread = threading.Thread(target=self._draw_again, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._thread is None:
            return
        with self.lock:
            self._stopped.set()
            self._wipe()
        self._thread.join()
        for number in self._caught:
            signal.signal(number, signal.SIG_DFL)

    def print_above(self, words: str, stream: TextIO) -> None:
        """Whole lines, which stay."""
        with self.lock:
            shown = self._shown
            if shown and stream.isatty():
                self._wipe()
            click.echo(words, file=stream)
            stream.flush()
            if shown and not self._shown:
                self._draw(shown)

    def _draw_again(self) -> None:
        while not self._stopped.wait(_INTERVAL_SECONDS):
            with self.lock:
                if not self._stopped.is_set() and self._is_in_foreground():
                    width, height = self._size()
                    self._draw(["", *self._lines(min(width, WIDEST_COLUMNS), height - 2)][: height - 1])

    def _size(self) -> tuple[int, int]:
        """A terminal that says nothing of it has the size that all had once."""
        size = os.get_terminal_size(self._terminal.fileno())
        return size.columns or 80, size.lines or 24

    def _draw(self, lines: list[str]) -> None:
        up = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
        wipe = _WIPE if self._shown else ""
        self._terminal.write("".join((wipe, _NO_WRAP, "\r\n".join(lines), _WRAP, "\r", up)))
        self._terminal.flush()
        self._shown = lines

    def _wipe(self) -> None:
        if self._shown:
            self._terminal.write(_WIPE)
            self._terminal.flush()
            self._shown = []

    def _is_in_foreground(self) -> bool:
        """The terminal of a job in the background is its shell's."""
        try:
            return os.tcgetpgrp(self._terminal.fileno()) == os.getpgrp()
        except OSError:
            return True  # it controls nobody

    def _step_aside(self, number: int, _frame: FrameType | None) -> None:
        """Do what the signal asks for, with a clean terminal."""
        with self.lock:
            self._wipe()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            signal.signal(number, self._step_aside)  # it was only stopped, and goes on
