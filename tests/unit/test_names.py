"""Names of files and users: what is taken, and into which form."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.domain.names import CONTROL, check_user_id, normalise_name

BIDI_CONTROLS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@pytest.mark.parametrize(
    "name", ["a", "docs/a.iso", " a ", "...", ".hidden", "a/..b/c", "文件/ファイル", "👩‍👩‍👧", 'a"b:c*?', "~"]
)
def test_an_ordinary_name_is_taken_as_it_is_in_nfc(name: str) -> None:
    assert normalise_name(name) == name
    assert normalise_name("Cafe\u0301/\u212b.txt") == "Caf\u00e9/\u00c5.txt"


@pytest.mark.parametrize(
    ("reason", "names"),
    [
        ("empty", ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/.", "./a"]),
        ("backslash", ["a\\b"]),
        ("Unicode", ["\ud800", "a\udfff", "\udcff/b"]),
        ("control", [f"a{each}b" for each in (*BIDI_CONTROLS, *"\0\n\r\t\x1b\x7f\x85\u2028\u2029")]),
    ],
)
def test_what_is_no_name_is_refused_and_no_user_id_where_the_rule_is_the_same(reason: str, names: list[str]) -> None:
    for name in names:
        with pytest.raises(ValueError, match=reason):
            normalise_name(name)
        if reason in ("Unicode", "control"):
            with pytest.raises(ValueError, match=reason):
                check_user_id(name.replace("/", ""))


def test_every_control_character_is_one() -> None:
    controls = {chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cc", "Zl", "Zp")}
    found = set(CONTROL.findall("".join(map(chr, range(0x110000)))))
    assert found == controls | set(BIDI_CONTROLS)


def test_the_limits_of_a_name_are_in_bytes_of_utf_8() -> None:
    segment = "é" * 127 + "x"  # 255 bytes
    whole = "/".join([segment] * 4)  # 1023 bytes
    assert normalise_name(segment) == segment
    assert normalise_name(whole) == whole
    with pytest.raises(ValueError, match="segment longer than 255"):
        normalise_name(segment + "x")
    with pytest.raises(ValueError, match="longer than 1024"):
        normalise_name(f"{whole}/x")
    decomposed = "e\u0301" * 127  # 381 bytes as sent, 254 in NFC
    assert len(normalise_name(decomposed).encode()) == 254


@given(st.text(max_size=40))
def test_a_name_that_is_taken_keeps_every_rule_and_is_taken_again_unchanged(text: str) -> None:
    try:
        name = normalise_name(text)
    except ValueError:
        return
    assert name == unicodedata.normalize("NFC", text)
    assert normalise_name(name) == name
    assert not set(name.split("/")) & {"", ".", ".."}
    assert not set(name) & set("\\\0\n\r" + BIDI_CONTROLS)
    assert len(name.encode()) <= 1024


def test_a_user_id_has_no_white_space_no_slash_and_few_bytes() -> None:
    for user_id in ("alice", "a@b.c", "用户", "x" * 255, "auth0|123", ".", "é" * 127):
        assert check_user_id(user_id) == user_id
    for user_id in ("", "x" * 256, "é" * 128, "a b", "a\u00a0b", "a\u3000b", " a", "a/b"):
        with pytest.raises(ValueError, match=r"empty|longer|white space"):
            check_user_id(user_id)
