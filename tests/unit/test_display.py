"""The figures of a whole `put` or `get`: what is left of all files, how fast, and whether it waits. The clock is turned."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.support.clock import ManualClock
from uploader.cli.client.display import Figures, Steps, short_name
from uploader.cli.client.events import Completed, Failed, Moving, Planned, Retrying, Started
from uploader.cli.client.local import decode_name, encode_name
from uploader.client import File, How
from uploader.domain.names import normalise_name

MIB = 1 << 20
GIB = 1 << 30


def moved(path: str, size: int, there: int, *, sent: int | None = None, hashed: int = 0) -> Moving:
    return Moving(path, path, size, "uploading", there, 0, there if sent is None else sent, hashed, 0, None, None)


def complete(path: str, size: int, how: How) -> Completed:
    return Completed(path, File("0" * 32, path, None, "0" * 64, size, datetime(2026, 1, 1, tzinfo=UTC), False), how)


def begun(clock: ManualClock, sizes: dict[str, int]) -> Figures:
    figures = Figures(clock.monotonic)
    figures.take(Planned(len(sizes), sum(sizes.values())))
    return figures


def pass_seconds(clock: ManualClock, figures: Figures, seconds: float) -> None:
    for _ in range(int(seconds * 4)):
        clock.advance(0.25)
        figures.sample()


def test_the_time_left_is_for_all_files_not_for_those_that_move(clock: ManualClock) -> None:
    figures = begun(clock, {"a": 100 * MIB, "b": 900 * MIB})
    figures.take(Started("a", "a", 100 * MIB))
    figures.take(moved("a", 100 * MIB, 0))
    for second in range(1, 6):
        pass_seconds(clock, figures, 1)
        figures.take(moved("a", 100 * MIB, 10 * MIB * second))
        figures.sample()
    assert figures.pace()[0] == pytest.approx(10 * MIB, abs=MIB)
    assert figures.pace()[1] == pytest.approx(95, abs=8)


def test_what_is_there_already_is_no_pace_and_what_failed_is_not_left(clock: ManualClock) -> None:
    figures = begun(clock, {"a": GIB, "b": GIB, "c": GIB})
    figures.sample()
    for path in ("a", "b"):
        figures.take(Started(path, path, GIB))
    figures.take(complete("a", GIB, "present"))
    figures.take(Failed("b", "unreadable", "gone", retryable=False))
    pass_seconds(clock, figures, 2)
    assert figures.pace()[0] is None
    assert (figures.over_files, figures.there_bytes) == (2, 2 * GIB)
    # What an earlier run had sent is none either.
    figures.take(Started("c", "c", GIB))
    figures.take(moved("c", GIB, GIB // 2, sent=0))
    pass_seconds(clock, figures, 2)
    assert figures.pace()[0] is None
    assert figures.there_bytes == 2 * GIB + GIB // 2


def test_while_the_server_is_away_nothing_freezes_and_afterwards_it_begins_anew(clock: ManualClock) -> None:
    figures = begun(clock, {"a": GIB})
    figures.take(Started("a", "a", GIB))
    for second in range(4):
        figures.take(moved("a", GIB, second * MIB))
        pass_seconds(clock, figures, 1)
    assert figures.pace()[0] is not None
    figures.take(Retrying("unreachable", "refused", 1.0))
    pass_seconds(clock, figures, 7)
    figures.take(Retrying("unreachable", "refused again", 1.0))
    figures.take(moved("a", GIB, 3 * MIB, sent=5 * MIB, hashed=MIB))  # only hashing goes on, and what is lost
    assert figures.waiting() == (7, "refused")
    assert figures.pace()[0] is figures.pace()[1] is None
    figures.take(moved("a", GIB, 6 * MIB))
    assert figures.waiting() is None
    figures.sample()
    assert figures.pace()[0] is None, "the pause is no pace"
    pass_seconds(clock, figures, 1)
    figures.take(moved("a", GIB, 7 * MIB))
    pass_seconds(clock, figures, 1)
    assert figures.pace()[0] == MIB / 2


def test_a_line_that_is_dead_is_waited_for_too_and_hashing_is_none(clock: ManualClock) -> None:
    figures = begun(clock, {"a": GIB})
    assert figures.waiting() is None
    figures.take(Started("a", "a", GIB))
    figures.take(moved("a", GIB, MIB))
    for hashed in range(1, 4):
        pass_seconds(clock, figures, 8)
        figures.take(moved("a", GIB, MIB, hashed=hashed * MIB))
    assert figures.waiting() is None
    pass_seconds(clock, figures, 11)
    waiting = figures.waiting()
    assert waiting is not None and waiting[0] == 11


def test_where_there_are_no_bars_a_line_now_and_then_says_how_far_all_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uploader.cli.client.display._STEP_SECONDS", 0.0)
    steps = Steps()
    for event in (Planned(2, 4 * MIB), Started("a", "a", 3 * MIB), moved("a", 3 * MIB, MIB)):
        steps.show(event)
    steps.show(complete("a", 3 * MIB, "sent"))
    said = capsys.readouterr()
    assert (said.out, said.err) == ("a  (3 MiB, sent)\n", "uploader: 0 of 2 files, 1 MiB of 4 MiB\n")


@pytest.mark.parametrize(
    ("name", "columns", "shown"),
    [
        ("films/a.mkv", 11, "films/a.mkv"),
        ("films/summer/a.mkv", 11, "…mmer/a.mkv"),
        ("films/01-summer-holiday-2026.mkv", 19, "01-summer…-2026.mkv"),
        ("films/04-summer-holiday-2026.mkv", 19, "04-summer…-2026.mkv"),
        ("夏の休暇の映画その一.mkv", 19, "夏の休暇…その一.mkv"),
        ("a\x1b[31m" + "b" * 40, 5, None),
        ("abc", 1, "…"),
    ],
)
def test_a_long_name_is_cut_in_its_middle(name: str, columns: int, shown: str | None) -> None:
    short = short_name(name, columns)
    assert cell_len(short) <= columns
    assert "\x1b" not in short
    assert shown in (None, short)


# Names that no server takes

_PARTS = st.lists(
    st.one_of(st.sampled_from([*"%2fF5cC\\.é\n\u202e", "%5C", "%25", "%2F", "%00", ".."]), st.binary(max_size=3)),
    min_size=1,
    max_size=8,
)


def _text(parts: list[str | bytes]) -> str:
    joined = b"".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    return joined.replace(b"/", b"").replace(b"\0", b"").decode("utf-8", "surrogateescape")


@given(_PARTS)
def test_a_name_is_encoded_for_the_server_and_back(parts: list[str | bytes]) -> None:
    name = _text(parts)
    encoded = encode_name(name)
    assert decode_name(encoded) == name
    if name not in ("", ".", ".."):
        normalise_name(encoded)


def test_what_nobody_encoded_is_no_slash_and_leads_nowhere() -> None:
    for name in ("a%2Fb", "%2E%2E/x", "%2e%2e", "a%00", "100%", "%41", "%E9", "%5c"):
        assert decode_name(name) in (name, name.replace("%E9", "\udce9"))
    assert decode_name("a%5Cb/c%0A") == "a\\b/c\n"
