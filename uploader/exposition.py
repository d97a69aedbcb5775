"""What every process of an installation has counted, summed when somebody looks.

Each process holds a *slot* of a directory, by a lock, and writes its figures into the slot's file. A slot outlives its
process, and the next holder goes on from its figures: no counter falls when a process ends or is replaced.
"""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any

from prometheus_client import REGISTRY, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import CollectorRegistry

from uploader import __version__
from uploader.observability import LARGEST_GAUGES

logger = logging.getLogger(__name__)

_PUBLISH_SECONDS = 1.0
_PREFIX = "uploader_"
_ADDED = ("counter", "histogram")

# A sample by its name and its labels, such as ("uploader_chunks_total", (("outcome", "recorded"),)).
Sample = tuple[str, tuple[tuple[str, str], ...]]
Figures = dict[Sample, float]


class Exposition:
    """The metrics of this process and of the others on the same directory, from `async with` on."""

    def __init__(self, directory: Path, *, alone: bool, registry: CollectorRegistry = REGISTRY) -> None:
        """`alone`: whether this is the only server process, so that what describes a process can be shown."""
        self._directory = directory
        self._alone = alone
        self._registry = registry
        # What this registry had counted before, and the slot had when it was taken.
        self._before: Figures = {}
        self._inherited: Figures = {}
        self._published: Figures | None = None
        self._slot: Path | None = None
        self._lock: int | None = None
        self._writing = threading.Lock()
        self._publishing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Exposition":
        await asyncio.to_thread(self._take_slot)
        self._publishing = asyncio.create_task(self._publish_on_and_on(), name="exposition")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._publishing is not None
        self._publishing.cancel()
        await asyncio.wait({self._publishing})
        await asyncio.to_thread(self._publish)
        if self._lock is not None:
            os.close(self._lock)

    async def render(self) -> bytes:
        """In the format of Prometheus. What is shown is published first, so that it is never taken back."""
        return await asyncio.to_thread(self._render)

    async def _publish_on_and_on(self) -> None:
        while True:
            await asyncio.sleep(_PUBLISH_SECONDS)
            await asyncio.to_thread(self._publish)

    # Slots

    def _take_slot(self) -> None:
        self._before, _ = self._collected()
        self._directory.mkdir(mode=0o700, exist_ok=True)
        number = 0
        while self._lock is None:
            self._lock = _try_lock(self._directory / f"{number}.lock", fcntl.LOCK_EX)
            number += 1
        self._slot = self._directory / f"{number - 1}.json"
        self._inherited, _ = _read(self._slot)

    def _publish(self) -> None:
        with self._writing:
            self._publish_slot()

    def _publish_slot(self) -> None:
        figures, gauges = self._own(), self._gauges()
        if self._slot is None or figures | gauges == self._published:
            return
        content = {"version": __version__, "figures": _spell(figures), "gauges": _spell(gauges)}
        draft = self._slot.with_suffix(".draft")
        try:
            draft.write_text(json.dumps(content))
            draft.replace(self._slot)
            self._published = figures | gauges
        except OSError as error:  # a full disk: what was counted stays in memory
            logger.debug("metrics are not shared for now", extra={"reason": str(error)})

    # Figures

    def _collected(self) -> tuple[Figures, Figures]:
        """What is added over processes, and of what the largest counts."""
        figures, gauges = {}, {}
        for family in self._registry.collect():
            for sample in family.samples if family.name.startswith(_PREFIX) else ():
                key = (sample.name, tuple(sorted(sample.labels.items())))
                if family.type in _ADDED:
                    figures[key] = sample.value
                elif family.name in LARGEST_GAUGES:
                    gauges[key] = sample.value
        return figures, gauges

    def _own(self) -> Figures:
        """What this process and those that had its slot before have counted."""
        collected, _ = self._collected()
        own = {key: value - self._before.get(key, 0.0) for key, value in collected.items()}
        return {key: own.get(key, 0.0) + self._inherited.get(key, 0.0) for key in own.keys() | self._inherited.keys()}

    def _gauges(self) -> Figures:
        return self._collected()[1]

    def _render(self) -> bytes:
        self._publish()
        figures, gauges = self._own(), self._gauges()
        for path in self._directory.glob("*.json"):
            if path == self._slot:
                continue
            others, others_gauges = _read(path)
            for key, value in others.items():
                figures[key] = figures.get(key, 0.0) + value
            for key, value in others_gauges.items() if _is_held(path) else ():
                gauges[key] = max(gauges.get(key, value), value)
        return generate_latest(_Summed(self._families(figures | gauges)))

    def _families(self, figures: Figures) -> list[Metric]:
        by_name: dict[str, list[Sample]] = defaultdict(list)
        for key in figures:
            by_name[key[0]].append(key)
        families = []
        for family in self._registry.collect():
            if not family.name.startswith(_PREFIX):
                families += [family] if self._alone else []
                continue
            if family.type in _ADDED or family.name in LARGEST_GAUGES:
                names = [family.name, *(f"{family.name}_{part}" for part in ("total", "bucket", "sum", "count"))]
                keys = sorted((key for name in names for key in by_name[name]), key=_order)
                families.append(_with_samples(family, keys, figures))
            else:
                families.append(family)
        return families


class _Summed:
    """As much of a registry as `generate_latest` needs."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _with_samples(family: Metric, keys: list[Sample], figures: Figures) -> Metric:
    made = Metric(family.name, family.documentation, family.type)
    for key in keys:
        made.add_sample(key[0], dict(key[1]), figures[key])
    return made


def _order(key: Sample) -> tuple[object, ...]:
    """By labels; the buckets of a histogram in their order, then its sum and count."""
    name, labels = key
    bound = dict(labels).get("le")
    rest = tuple(label for label in labels if label[0] != "le")
    return (rest, bound is None, float(bound or 0), name)


# Files


def _try_lock(path: Path, kind: int) -> int | None:
    """The descriptor that holds the lock, or None if another process does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _is_held(slot: Path) -> bool:
    """Whether a process that lives has this slot."""
    descriptor = _try_lock(slot.with_suffix(".lock"), fcntl.LOCK_SH)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def _spell(figures: Figures) -> list[Any]:
    return [[name, dict(labels), value] for (name, labels), value in figures.items()]


def _read(path: Path) -> tuple[Figures, Figures]:
    """The figures and gauges of a slot; none where there is no file, a broken one, or one of another version."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(path.read_text())
        if content["version"] == __version__:
            return _figures(content["figures"]), _figures(content["gauges"])
    return {}, {}


def _figures(spelt: list[Any]) -> Figures:
    return {(name, tuple(sorted(labels.items()))): float(value) for name, labels, value in spelt}
