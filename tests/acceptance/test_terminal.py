"""What `put` looks like on a real terminal: each line of a result stays, and nothing of the bars does."""

import os
import re
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from starlette.types import Scope

from tests.conftest import MakeStack
from tests.support.commands import Commands
from tests.support.content import KIB, Content
from tests.support.process import UPLOADER
from tests.support.sites import Gate, Site, a_site, is_chunk
from tests.support.terminal import running_in_terminal
from uploader.units import human_bytes

pytestmark = pytest.mark.usefixtures("tmux")
LARGE = {f"film {number}.bin": Content(16 * 64 * KIB - number, seed=950 + number) for number in range(4)}
PUT_LARGE = f"{UPLOADER} put *.bin --chunk-size 64KiB --hash-first 64KiB --patience 2m"


def is_sent(scope: Scope) -> bool:
    return is_chunk(scope) or scope.get("path") == "/files/batch"


@pytest.fixture
async def site(make_stack: MakeStack) -> AsyncIterator[Site]:
    async with a_site(make_stack, concerns=is_sent) as made:
        yield made


@pytest.fixture
def gate(site: Site) -> Gate:
    return site.gate


@pytest.fixture
async def commands(site: Site, tmp_path: Path) -> Commands:
    return Commands(tmp_path, site.url, await site.token())


def write_large(directory: Path) -> None:
    for name, content in LARGE.items():
        (directory / name).write_bytes(content.data)


def results_to(folder: str) -> list[str]:
    return [f"{folder}/{name}  ({human_bytes(content.size)}, sent)" for name, content in LARGE.items()]


def bars_in(lines: list[str]) -> list[str]:
    return [line for line in lines if re.search(r"[━╸╺]|\d of \d", line) and "files:" not in line]


def has_bars(count: int, lines: list[str]) -> bool:
    return len(bars_in(lines)) == count


def has_names(names: list[str], lines: list[str]) -> bool:
    return [line.split()[0] for line in bars_in(lines)[: len(names)]] == names


def has_bars_below(above: list[str], count: int, lines: list[str]) -> bool:
    """Both at once: a terminal may be looked at in the middle of being drawn."""
    return has_bars(count, lines) and lines[: len(above)] == above


async def test_of_large_files_results_stay_and_no_bar(gate: Gate, commands: Commands, tmp_path: Path) -> None:
    """Also while the terminal gets other sizes, and the server is away for a while."""
    write_large(tmp_path)
    gate.close(but=9)
    before = [str(number) for number in range(12)]
    command = f"seq 0 11; {PUT_LARGE} --to to"
    async with running_in_terminal(command, commands.environment, tmp_path) as terminal:
        # An empty line is between what stays and what goes.
        lines = await terminal.shows(partial(has_bars_below, [*before, ""], 5))
        assert [line.split(".bin")[0] for line in bars_in(lines)[:4]] == [f"to/film {number}" for number in range(4)]
        assert bars_in(lines)[4].startswith("0 of 4 files")
        assert "of 4.0 MiB" in bars_in(lines)[4]
        for width, height, count in ((200, 24, 5), (50, 24, 5), (200, 7, 3), (80, 7, 3), (80, 24, 5)):
            await terminal.resize(width, height)
            await terminal.shows(partial(has_bars_below, [*before, ""], count))
        await terminal.press("Enter")
        gate.refuse()
        await terminal.shows(lambda lines: "waiting for the server since" in lines[-1])
        gate.open()
        lines = await terminal.after_the_end()
    assert bars_in(lines) == []
    said = [line for line in lines if line]
    assert said[:12] == before
    assert sorted(said[13:-1]) == results_to("to")
    assert said[12] == "uploader: The database is away. (trying again)"
    assert re.fullmatch(r"uploader: 4 of 4 files: 4 sent; 4\.\d MiB moved in [\d.]+ s, [\d.]+ [KM]i?B/s", said[-1])
    assert len(lines) - len(said) <= 2, "of the key, and of nothing else"


async def test_of_small_files_results_stay_and_no_bar(gate: Gate, commands: Commands, tmp_path: Path) -> None:
    names = [f"{number:04}" for number in range(2000)]
    (tmp_path / "small").mkdir()
    for name in names:
        (tmp_path / "small" / name).write_text(name)
    gate.close(but=3)  # one of them is the question whether the server takes batches
    command = f"{UPLOADER} put small"
    async with running_in_terminal(command, commands.environment, tmp_path, columns=200) as terminal:
        await terminal.shows(lambda lines: any(re.match(r"(400|800) of 2000 files", line) for line in lines))
        await terminal.resize(80, 24)
        gate.open()
        lines = await terminal.after_the_end()
    assert lines[0] == "small/  (2000 files, 8 KB: 2000 sent)"
    assert lines[1].startswith("uploader: 2000 of 2000 files: 2000 sent; 8 KB moved in")
    assert len(lines) == 2
    gate.close(but=2)
    os.utime(tmp_path / "small" / "0000", (1, 1))
    command = f"{UPLOADER} put small -v --checksum"
    async with running_in_terminal(command, commands.environment, tmp_path) as terminal:
        await terminal.resize(200, 24)
        gate.open()
        lines = await terminal.after_the_end()
    assert sorted(lines[:-1]) == [f"small/{name}  (4 B, there already)" for name in names]


async def test_names_that_are_alike_are_told_apart(gate: Gate, commands: Commands, tmp_path: Path) -> None:
    names = [f"{number:02}-summer-holiday-of-2026.bin" for number in range(2)]
    for name, content in zip(names, LARGE.values(), strict=False):
        (tmp_path / name).write_bytes(content.data)
    gate.close(but=5)
    async with running_in_terminal(PUT_LARGE, commands.environment, tmp_path) as terminal:
        for columns, shown in ((80, ["00-summer-…-2026.bin", "01-summer-…-2026.bin"]), (120, names)):
            await terminal.resize(columns, 24)
            await terminal.shows(partial(has_names, shown))
        gate.open()
        assert bars_in(await terminal.after_the_end()) == []


async def test_beside_files_and_pipes_all_is_legible(gate: Gate, commands: Commands, tmp_path: Path) -> None:
    """Beside a pipe there are no bars, as what is behind it writes to the terminal, too."""
    write_large(tmp_path)
    for number, (beside, bars) in enumerate([("> said", 5), ("2> said", 0), ("2>&1 | tee said", 0), ("| cat", 0)]):
        gate.close(but=9)
        command = f"{PUT_LARGE} --to {number} --checksum {beside}"
        async with running_in_terminal(command, commands.environment, tmp_path, columns=120) as terminal:
            await terminal.shows(partial(has_bars, bars))
            gate.open()
            lines = await terminal.after_the_end()
        in_file = (tmp_path / "said").read_text().splitlines() if "said" in beside else []
        assert "\x1b" not in "".join(in_file)
        assert bars_in(lines + in_file) == []
        results = {re.sub(r"\(.*", "", line) for line in (*lines, *in_file)}
        assert results > {f"{number}/{name}  " for name in LARGE}
        assert len(results) == 5


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "uploader: interrupted; the same command goes on from here"),
        (signal.SIGTERM, 143, "Terminated"),
    ],
)
async def test_who_is_interrupted_leaves_no_bar(
    gate: Gate, commands: Commands, tmp_path: Path, number: signal.Signals, code: int, said: str
) -> None:
    write_large(tmp_path)
    gate.close(but=9)
    command = f"sh -c 'echo $$ > pid; exec {PUT_LARGE}'"
    async with running_in_terminal(command, commands.environment, tmp_path) as terminal:
        await terminal.shows(partial(has_bars, 5))
        if number is signal.SIGINT:
            await terminal.press("C-c")
        else:
            os.kill(int((tmp_path / "pid").read_text()), number)
        assert [line for line in await terminal.after_the_end(code) if line] == [said]
        gate.open()


async def test_message_breaks_between_words(commands: Commands, tmp_path: Path) -> None:
    name = "a long name of a file that is not there, with many words"
    async with running_in_terminal(f"{UPLOADER} rm '{name}'", commands.environment, tmp_path, columns=40) as terminal:
        lines = [line for line in await terminal.after_the_end(6) if line]
    words = f"uploader: there is no file '{name}' [file-not-found]".split()
    assert len(lines) > 2 and [word for line in lines for word in line.split()] == words
