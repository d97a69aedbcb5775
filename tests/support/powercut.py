"""What a power cut may leave of a directory: its calls are recorded, then the states are built that the rules allow.

The rules are those of POSIX, not the kinder ones of a filesystem: a sync of a file makes its bytes and its size durable, one
of a directory its entries. Of everything else any part may be there after the cut: of a write any of its sectors, of the
changes of a directory any. Only a rename is there as a whole or not at all. See "All File Systems Are Not Created Equal"
(Pillai et al., OSDI 2014).
"""

import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tests.support.faults import SYNCS, Call, intercepting

SECTOR_BYTES = 512
# The place of a sync that no program made.
THE_DISK = "the disk"
OUTSIDE = "outside"


@dataclass(eq=False)
class Node:
    """A file or a directory, by whatever names; `path` is the first of them."""

    path: str
    is_directory: bool


@dataclass(frozen=True)
class Write:
    node: Node
    offset: int
    content: bytes


@dataclass(frozen=True)
class Truncate:
    node: Node
    size: int


@dataclass(frozen=True)
class Entry:
    """A directory has an entry of this name, and none of the `former` name; no child: the name is gone."""

    node: Node
    name: str
    child: Node | None
    former: str | None = None


@dataclass(frozen=True)
class Sync:
    node: Node
    # Where in the program, and of what kind of file.
    place: str


@dataclass(frozen=True)
class Mark:
    """Something that happened elsewhere at this moment."""

    what: Any


Event = Write | Truncate | Entry | Sync | Mark
# The paths that are there, with the bytes of files; None is a directory.
Tree = dict[str, bytes | None]


class Recording:
    """The calls about everything under a directory that is empty in the beginning, and marks in between."""

    def __init__(self, path: Path) -> None:
        self.root = Node("", True)
        self.events: list[Event] = []
        self._path = str(path)
        self._lock = threading.Lock()
        self._opened: dict[int, Node] = {}
        self._entries: dict[Node, dict[str, Node]] = {self.root: {}}
        self._recorders: dict[str, Callable[[Call, Any], None]] = {
            "open": self._record_open,
            "mkdir": self._record_mkdir,
            "pwrite": self._record_write,
            "ftruncate": lambda call, _: self._add(Truncate(self._opened[call.arguments[0]], call.arguments[1])),
            "fsync": self._record_sync,
            "fdatasync": self._record_sync,
            "syncfs": self._record_sync_of_all,
            "link": self._record_link,
            "rename": self._record_rename,
            "unlink": self._record_unlink,
            "rmdir": self._record_unlink,
        }

    def mark(self, what: Any) -> None:
        with self._lock:
            self._add(Mark(what))

    def rot(self, path: str, offset: int, content: bytes) -> None:
        """The disk changed bytes of a file by itself, for good."""
        with self._lock:
            node = self.root
            for name in path.split("/"):
                node = self._entries[node][name]
            self._add(Write(node, offset, content))
            self._add(Sync(node, THE_DISK))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Nothing is really synced meanwhile: whether it would have been is what the states are about."""
        with intercepting(self._around):
            yield

    def _around(self, call: Call) -> Any:
        if call.name not in self._recorders:
            return call.make()
        with self._lock:
            result = None if call.name in SYNCS else call.make()
            self._recorders[call.name](call, result)
            return result

    def _add(self, event: Event) -> None:
        self.events.append(event)

    def _record_open(self, call: Call, descriptor: int) -> None:
        name, flags = call.arguments[:2]
        if "dir_fd" not in call.options:
            self._opened[descriptor] = self.root if str(name) == self._path else Node(OUTSIDE, True)
            return
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            self._opened[descriptor] = Node("spool/nameless", False)
            return
        directory = self._opened[call.options["dir_fd"]]
        if name not in self._entries[directory]:
            self._enter(directory, name, Node(f"{directory.path}/{name}".lstrip("/"), False))
        self._opened[descriptor] = self._entries[directory][name]
        if flags & os.O_TRUNC:
            self._add(Truncate(self._opened[descriptor], 0))

    def _record_mkdir(self, call: Call, _: None) -> None:
        directory, name = self._opened[call.options["dir_fd"]], call.arguments[0]
        made = Node(f"{directory.path}/{name}".lstrip("/"), True)
        self._entries[made] = {}
        self._enter(directory, name, made)

    def _record_write(self, call: Call, written: int) -> None:
        descriptor, content, offset = call.arguments
        self._add(Write(self._opened[descriptor], offset, bytes(content[:written])))

    def _record_sync(self, call: Call, _: None) -> None:
        node = self._opened[call.arguments[0]]
        if node.path != OUTSIDE:
            self._add(Sync(node, f"{_function_of_the_server()}: {_kind(node.path)}"))

    def _record_sync_of_all(self, _call: Call, _: None) -> None:
        place = f"{_function_of_the_server()}: all"
        for node in dict.fromkeys(event.node for event in self.events if not isinstance(event, Mark)):
            self._add(Sync(node, place))

    def _record_link(self, call: Call, _: None) -> None:
        child = self._entries[self._opened[call.options["src_dir_fd"]]][call.arguments[0]]
        self._enter(self._opened[call.options["dst_dir_fd"]], call.arguments[1], child)

    def _record_rename(self, call: Call, _: None) -> None:
        directory = self._opened[call.options["src_dir_fd"]]
        former, name = call.arguments
        child = self._entries[directory].pop(former)
        self._entries[directory][name] = child
        self._add(Entry(directory, name, child, former))

    def _record_unlink(self, call: Call, _: None) -> None:
        directory, name = self._opened[call.options["dir_fd"]], call.arguments[0]
        del self._entries[directory][name]
        self._add(Entry(directory, name, None))

    def _enter(self, directory: Node, name: str, child: Node) -> None:
        self._entries[directory][name] = child
        self._add(Entry(directory, name, child))


def _function_of_the_server() -> str:
    """The first line outside the module that makes the calls."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("uploader.") and module != "uploader.storage.disk":
            return f"{module.rpartition('.')[2]}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "nobody"


def _kind(path: str) -> str:
    """`temp/YYYY/MM/ID/data` for any upload, `blobs/ab/cd` for any blob, `installation.DRAFT` on its way to its name."""
    top, *names = path.split("/")
    if top.startswith("installation."):
        return "installation.DRAFT"
    patterns = {"temp": ["YYYY", "MM", "ID"], "blobs": ["ab", "cd", "SHA256"], "trash": [*names[:1], "ab"]}.get(top, [])
    return "/".join([top, *patterns[: len(names)], *names[len(patterns) :]]) or "."


# States

# What of an event that is not durable is there all the same: all of it, or of a write the sectors that are chosen.
Choice = Callable[[Event], "bool | Callable[[int], bool]"]


def nothing(_event: Event) -> bool:
    return False


def everything(_event: Event) -> bool:
    return True


def names_only(event: Event) -> bool:
    return not isinstance(event, Write)


def bytes_only(event: Event) -> bool:
    return not isinstance(event, Entry)


def by_chance(chance: random.Random) -> Choice:
    likely = chance.choice([0.1, 0.5, 0.9])

    def choose(event: Event) -> "bool | Callable[[int], bool]":
        if isinstance(event, Write) and chance.random() < 0.5:
            return lambda _sector: chance.random() < 0.5
        return chance.random() < likely

    return choose


class States:
    """What a power cut may leave after any number of the recorded events."""

    def __init__(self, recording: Recording, *, without: str | None = None) -> None:
        """`without`: as if the program did not sync in this place."""
        self.events = [event for event in recording.events if not (isinstance(event, Sync) and event.place == without)]
        self._root = recording.root
        self._durable_from = self._when_durable()

    def _when_durable(self) -> list[int]:
        """For each event how many events have happened when it is durable."""
        next_sync: dict[Node, int] = {}
        never = len(self.events) + 1
        durable_from = [never] * len(self.events)
        for index in reversed(range(len(self.events))):
            event = self.events[index]
            if isinstance(event, Sync):
                next_sync[event.node] = index + 1
            elif not isinstance(event, Mark):
                durable_from[index] = next_sync.get(event.node, never)
        return durable_from

    def after(self, count: int, choice: Choice) -> Tree:
        """A state if the power is cut after `count` events."""
        files: dict[Node, bytearray] = {}
        entries: dict[Node, dict[str, Node]] = {}
        for index, event in enumerate(self.events[:count]):
            if isinstance(event, (Sync, Mark)):
                continue
            there = self._durable_from[index] <= count or choice(event)
            if isinstance(event, Write):
                _write(files.setdefault(event.node, bytearray()), event, there)
            elif there and isinstance(event, Truncate):
                content = files.setdefault(event.node, bytearray())
                content[:] = content[: event.size].ljust(event.size, b"\0")
            elif there and isinstance(event, Entry):
                _change(entries.setdefault(event.node, {}), event)
        return dict(_tree(self._root, "", files, entries))


def _write(content: bytearray, event: Write, there: "bool | Callable[[int], bool]") -> None:
    if there is False:
        return
    end = event.offset + len(event.content)
    content.extend(bytes(max(0, end - len(content))))
    for sector in range(event.offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
        if there is True or there(sector):
            start, stop = max(sector * SECTOR_BYTES, event.offset), min((sector + 1) * SECTOR_BYTES, end)
            content[start:stop] = event.content[start - event.offset : stop - event.offset]


def _change(names: dict[str, Node], event: Entry) -> None:
    if event.former is not None:
        names.pop(event.former, None)
    if event.child is None:
        names.pop(event.name, None)
    else:
        names[event.name] = event.child


def _tree(
    node: Node, path: str, files: dict[Node, bytearray], entries: dict[Node, dict[str, Node]]
) -> Iterator[tuple[str, bytes | None]]:
    for name, child in sorted(entries.get(node, {}).items()):
        child_path = f"{path}/{name}".lstrip("/")
        yield child_path, None if child.is_directory else bytes(files.get(child, b""))
        yield from _tree(child, child_path, files, entries)


def lay_out(tree: Tree, root: Path) -> None:
    """Make a state a real one."""
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
