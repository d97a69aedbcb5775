"""Bars on a terminal, on standard error: one for each file that moves by itself, and one for all. Lines of results stay
above."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from uploader.cli.client.event_text import say
from uploader.cli.client.events import AnyEvent, Completed, Failed, Moving, Planned, Started, TransferSummary
from uploader.cli.client.showing import Reporter
from uploader.cli.readable import human_bytes, human_seconds, percent


class Bars(Reporter):
    """Begins with the first file; other commands never see a bar."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[size]}", justify="right"),
            TextColumn("{task.fields[rate]}", justify="right"),
            TextColumn("{task.fields[left]}", justify="right"),
            TextColumn("{task.fields[note]}", style="dim"),
            console=Console(stderr=True),
            transient=True,
            expand=True,
        )
        self._planned: Planned | None = None
        self._total: TaskID | None = None
        self._tasks: dict[str, TaskID] = {}
        self._moving: dict[str, Moving] = {}
        self._over_files = self._over_bytes = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
        super().__exit__(kind, error, trace)

    def show(self, event: AnyEvent) -> None:
        match event:
            case Planned():
                self._planned = event
            case Started():
                self._begin()
            case Moving():
                self._move(event)
            case Completed():
                self._end(event.path, event.file.size)
            case Failed(path=str() as path):
                self._end(path, self._moving[path].size if path in self._moving else 0)
            case TransferSummary():
                self._bars.stop()
        say(event)

    def _begin(self) -> None:
        """A file of a batch never moves: it is there, or it is not."""
        self._bars.start()
        if self._total is None and self._planned is not None and self._planned.files > 1:
            self._total = self._add("", self._planned.bytes)
            self._show_total()

    def _add(self, description: str, total: int) -> TaskID:
        return self._bars.add_task(description, total=total, size="", rate="", left="", note="")

    def _move(self, event: Moving) -> None:
        if event.path not in self._tasks:
            self._tasks[event.path] = self._add(event.name, event.size)
        self._moving[event.path] = event
        there = event.received_bytes + event.in_flight_bytes
        self._update(
            self._tasks[event.path], there, event.size, event.bytes_per_second, event.seconds_left, _note(event)
        )
        self._show_total()

    def _end(self, path: str, size: int) -> None:
        task = self._tasks.pop(path, None)
        if task is not None:
            self._bars.remove_task(task)
        self._moving.pop(path, None)
        self._over_files += 1
        self._over_bytes += size
        self._show_total()

    def _show_total(self) -> None:
        if self._total is None or self._planned is None:
            return
        there = self._over_bytes + sum(each.received_bytes + each.in_flight_bytes for each in self._moving.values())
        rate = next(task.speed for task in self._bars.tasks if task.id == self._total)
        left = max(0, self._planned.bytes - there) / rate if rate else None
        self._bars.update(self._total, description=f"{self._over_files} of {self._planned.files} files")
        self._update(self._total, there, self._planned.bytes, rate, left, "")

    def _update(self, task: TaskID, there: int, size: int, rate: float | None, left: float | None, note: str) -> None:
        self._bars.update(
            task,
            completed=there,
            size=f"{human_bytes(there)} of {human_bytes(size)}",
            rate=f"{human_bytes(round(rate))}/s" if rate else "",
            left="" if left is None else f"{human_seconds(left)} left",
            note=note,
        )


def _note(event: Moving) -> str:
    """What goes on beside the sending."""
    if event.state == "merging":
        return f"merging {percent(event.merged_bytes, event.size)}"
    if event.state in ("hashing", "uploading") and event.hashed_bytes < event.size:
        return f"hashing {percent(event.hashed_bytes, event.size)}"
    return ""
