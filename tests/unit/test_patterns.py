"""Patterns of names on the command line."""

import pytest

from uploader.cli.client.filters import Pattern, is_pattern


@pytest.mark.parametrize(
    ("word", "name", "matched"),
    [
        ("manual/*", "manual/a", "manual/a"),
        ("manual/*", "manual/sub/b", "manual/sub/"),
        ("manual/*", "manual", None),
        ("manual/*", "other/a", None),
        ("manual/*/", "manual/a", None),
        ("manual/*/", "manual/sub/b", "manual/sub/"),
        ("*.txt", "a.txt", "a.txt"),
        ("*.txt", "sub/a.txt", None),
        ("*.txt", "old.txt/a", "old.txt/"),
        ("**/*.txt", "a.txt", "a.txt"),
        ("**/*.txt", "x/y/a.txt", "x/y/a.txt"),
        ("x/**", "x/y/a.txt", "x/y/a.txt"),
        ("x/**/a.txt", "x/a.txt", "x/a.txt"),
        ("photos/20[12]?/*.jpg", "photos/2016/x.jpg", "photos/2016/x.jpg"),
        ("photos/20[!1]?/*.jpg", "photos/2016/x.jpg", None),
        ("?", "ab", None),
        ("?", "é", "é"),
        ("*", ".hidden", ".hidden"),
        ("*", "a/b/c", "a/"),
        ("a.c*", "abc", None),
        ("a[", "a[", "a["),
    ],
)
def test_a_pattern_matches_names_and_folders(word: str, name: str, matched: str | None) -> None:
    assert Pattern(word).match(name) == matched


@pytest.mark.parametrize(
    ("word", "prefix", "base"),
    [
        ("manual/*", "manual/", "manual/"),
        ("photos/20*/x", "photos/20", "photos/"),
        ("*.pdf", "", ""),
        ("a[1].txt", "a", ""),
        ("a/b/c?", "a/b/c", "a/b/"),
    ],
)
def test_what_is_fixed_of_a_pattern_is_asked_for(word: str, prefix: str, base: str) -> None:
    pattern = Pattern(word)
    assert (pattern.prefix, pattern.base) == (prefix, base)


def test_what_has_no_magic_is_no_pattern() -> None:
    assert [is_pattern(word) for word in ("a/b", "a-b{1}", "a*", "a?", "[a")] == [False, False, True, True, True]
