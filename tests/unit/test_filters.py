"""What --exclude, --include and --files-from take and leave out."""

import io

import pytest

from uploader.cli.client.filters import Filters, Pattern, Rule, is_pattern, listed_in

PATHS = ["a.jpg", "a.txt", "docs/b.jpg", "docs/drafts/c.txt", "docs/drafts/d.jpg", "sub/docs/e.txt"]
PATHS += ["node_modules/x/f.js"]


def taken(*rules: str) -> list[str]:
    """By rules such as `-*.jpg` and `+docs/`."""
    filters = Filters([Rule(rule[1:], includes=rule[0] == "+") for rule in rules])
    found = [path for path in PATHS if filters.take(path)]
    # What is not walked into holds nothing that would be taken.
    for path in found:
        folders = path.split("/")[:-1]
        for depth in range(1, len(folders) + 1):
            assert not filters.leave_out("/".join(folders[:depth]) + "/")
    return found


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ((), PATHS),
        (["-*.jpg"], ["a.txt", "docs/drafts/c.txt", "sub/docs/e.txt", "node_modules/x/f.js"]),
        (["-/*.jpg"], PATHS[1:]),  # a / at the beginning: of the whole path
        (["-docs"], ["a.jpg", "a.txt", "node_modules/x/f.js"]),  # in any folder, with all that is in it
        (["-/docs"], ["a.jpg", "a.txt", "sub/docs/e.txt", "node_modules/x/f.js"]),
        (["-a.txt/"], PATHS),  # a / at the end: folders only
        (["-docs/drafts"], ["a.jpg", "a.txt", "docs/b.jpg", "sub/docs/e.txt", "node_modules/x/f.js"]),
        (["-docs/*.jpg"], [path for path in PATHS if path != "docs/b.jpg"]),  # * is within one part
        (["-docs/**/*.jpg"], [path for path in PATHS if path not in ("docs/b.jpg", "docs/drafts/d.jpg")]),
        (["-[an]*"], ["docs/b.jpg", "docs/drafts/c.txt", "docs/drafts/d.jpg", "sub/docs/e.txt"]),
        (["+*.jpg"], ["a.jpg", "docs/b.jpg", "docs/drafts/d.jpg"]),  # only includes: nothing else
        (["+*.jpg", "-docs"], ["a.jpg", "a.txt", "docs/b.jpg", "docs/drafts/d.jpg", "node_modules/x/f.js"]),
        (["-docs", "+*.jpg"], ["a.jpg", "a.txt", "node_modules/x/f.js"]),  # the first that matches decides
        (["-drafts", "+/docs", "-*"], ["docs/b.jpg"]),
    ],
)
def test_the_first_rule_that_matches_decides(rules: list[str], expected: list[str]) -> None:
    assert taken(*rules) == expected


def test_folders_are_not_walked_into_in_vain() -> None:
    excluded = Filters([Rule("node_modules/", includes=False), Rule("*.js", includes=True)])
    assert excluded.leave_out("node_modules/")
    assert excluded.leave_out("a/node_modules/")
    assert not excluded.leave_out("src/")
    perhaps = Filters([Rule("*.js", includes=True), Rule("node_modules/", includes=False)])
    assert not perhaps.leave_out("node_modules/")
    assert not Filters().leave_out("node_modules/")


def test_a_list_names_files_and_folders() -> None:
    listed = listed_in(io.BytesIO("./docs/drafts/\r\n\na.jpg\nü\ndocs//b.jpg\na.jpg\nsub".encode()))
    assert listed == ["docs/drafts", "a.jpg", "ü", "docs/b.jpg", "sub"]
    filters = Filters([Rule("*.txt", includes=False)]).only(listed)
    found = [path for path in [*PATHS, "u\u0308"] if filters.take(path)]
    assert found == ["a.jpg", "docs/b.jpg", "docs/drafts/d.jpg", "u\u0308"]
    folders = ("docs/", "docs/drafts/", "docs/else/", "node_modules/")
    assert [folder for folder in folders if filters.leave_out(folder)] == ["docs/else/", "node_modules/"]
    assert not Filters().only([]).take("a.jpg")


@pytest.mark.parametrize("line", ["/etc/passwd", "../a", "a/../../b"])
def test_a_list_leads_nowhere_else(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        listed_in(io.BytesIO(f"good\n{line}\n".encode()))


def test_what_is_no_pattern_and_what_matches_nothing() -> None:
    assert [is_pattern(word) for word in ("a/b", "a-b{1}", "a*", "a?", "[a")] == [False, False, True, True, True]
    for pattern in ("", "/", "//"):
        with pytest.raises(ValueError, match="matches nothing"):
            Rule(pattern, includes=True)


MATCHED: dict[str, dict[str, str | None]] = {
    "manual/*": {"manual/a": "manual/a", "manual/sub/b": "manual/sub/", "manual": None, "other/a": None},
    "manual/*/": {"manual/a": None, "manual/sub/b": "manual/sub/"},
    "*.txt": {"a.txt": "a.txt", "sub/a.txt": None, "old.txt/a": "old.txt/"},
    "**/*.txt": {"a.txt": "a.txt", "x/y/a.txt": "x/y/a.txt"},
    "x/**": {"x/y/a.txt": "x/y/a.txt"},
    "x/**/a.txt": {"x/a.txt": "x/a.txt"},
    "photos/20[12]?/*.jpg": {"photos/2016/x.jpg": "photos/2016/x.jpg"},
    "photos/20[!1]?/*.jpg": {"photos/2016/x.jpg": None},
    "?": {"ab": None, "é": "é"},
    "*": {".hidden": ".hidden", "a/b/c": "a/"},
    "a.c*": {"abc": None},
    "a[": {"a[": "a["},
}


@pytest.mark.parametrize("word", MATCHED)
def test_a_pattern_matches_names_and_folders(word: str) -> None:
    assert {name: Pattern(word).match(name) for name in MATCHED[word]} == MATCHED[word]


def test_what_is_fixed_of_a_pattern_is_asked_for() -> None:
    fixed = {"manual/*": ("manual/", "manual/"), "photos/20*/x": ("photos/20", "photos/"), "*.pdf": ("", "")}
    fixed |= {"a[1].txt": ("a", ""), "a/b/c?": ("a/b/c", "a/b/")}
    assert {word: (Pattern(word).prefix, Pattern(word).base) for word in fixed} == fixed
