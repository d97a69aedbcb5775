"""`python -m tests.support.changed [REV]`: says which tests are nearest to what has changed since a commit, one a line.

A changed module of tests comes first, as a whole. Of all other tests the nearest are those that share most words with the
lines that have changed, those around them and the path, rare words before common ones (Okapi BM25). So a script, a page or a
setting has near tests as a module has; an import says less, since most tests start the whole server.
"""

import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice, zip_longest
from pathlib import Path

ROOT = Path(__file__).parents[2]
NEAREST = 100
# Compares all pages with the code.
_OF_PAGES = "tests/unit/test_docs.py"
# Tests that `.ci/run` passes by commands of their own.
_ELSEWHERE = ("clients", "ceph", "image")
# The branches of which a change is one, as far as they are here.
_MAIN = ("origin/main", "main")
_LINES_AROUND = 8
# Of one file; and so many files, those that have changed most.
_CHARACTERS = 500_000
_FILES = 50
# How much a word in a path counts, or one of the test itself, which has those of its module, too.
_WEIGHT = 3
# Where further times of a word count less, and how much the length of a text matters: as is usual.
_SATURATION, _LENGTH = 1.2, 0.75

_TEST = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
_IMPORT = re.compile(r"^ *from ([\w.]+) import (\([^)]*\)|.+)", re.MULTILINE)


class NoCommit(Exception):
    """Git can't tell what has changed."""


@dataclass(frozen=True)
class Words:
    """How often a test has each word."""

    own: Counter[str]
    beside: Counter[str]

    @cached_property
    def length(self) -> int:
        return _WEIGHT * self.own.total() + self.beside.total()

    def of(self, change: Mapping[str, int]) -> dict[str, int]:
        words = change.keys() & self.own.keys() | change.keys() & self.beside.keys()
        return {word: _WEIGHT * self.own[word] + self.beside[word] for word in words}


def main(rev: str = "", root: Path = ROOT) -> int:
    try:
        base = _base(root, rev)
        changed = changes(root, base)
    except NoCommit as error:
        print(f"tests/run --changed: {error}", file=sys.stderr)
        return 2
    picked = pick(root, changed)
    files = f"{len(changed)} file{'s' if len(changed) > 1 else ''} changed" if changed else "nothing has changed"
    print(f"tests/run --changed: {files} since {base[:12]}{', near are:' if picked else ''}", file=sys.stderr)
    for module, count in Counter(test.partition("::")[0] for test in picked).items():
        print(f"  {module}" + (f" ({count})" if module not in picked else ""), file=sys.stderr)
    for folder in _ELSEWHERE:
        if any(path.startswith(f"tests/{folder}/") for path in changed):
            print(f"  and tests/{folder}, which .ci/run passes, not this", file=sys.stderr)
    print(*picked, sep="\n")
    return 0


def changes(root: Path, base: str) -> dict[str, str]:
    """What differs in each file that is not as in a commit: changed, new or gone; of modules of tests, nothing."""
    diff = ("diff", "--relative", "--no-renames", "--no-color", "--no-ext-diff", base)
    new = _split(_git(root, "ls-files", "-z", "--others", "--exclude-standard"))
    old = _split(_git(root, *diff, "-z", "--name-only"))
    changed = dict.fromkeys([*old, *new], "")
    if others := [path for path in old if not _is_test(path)]:
        parts = re.split(r"^diff --git ", _git(root, *diff, f"-U{_LINES_AROUND}", "--", *others), flags=re.MULTILINE)
        # Without the lines before, which are git's own words.
        changed.update(zip(others, (part.partition("\n@@")[2] for part in parts[1:]), strict=True))
    for path in new:
        if not _is_test(path) and (root / path).is_file():
            with (root / path).open(errors="replace") as file:
                changed[path] = file.read(_CHARACTERS)
    return changed


def pick(root: Path, changed: Mapping[str, str]) -> list[str]:
    """The tests to pass, as pytest calls them: modules that have changed, then the nearest to each other file in turn."""
    modules = [path for path in changed if _is_test(path) and not _is_elsewhere(path)]
    if any(path.endswith(".md") for path in changed):
        modules.append(_OF_PAGES)
    modules = [path for path in dict.fromkeys(modules) if (root / path).is_file()]
    texts = {path: text[:_CHARACTERS] for path, text in changed.items() if not _is_test(path)}
    most = sorted(texts, key=lambda path: len(texts[path]), reverse=True)[:_FILES]
    if not texts:
        return modules
    tests = {test: words for test, words in _tests(root).items() if test.partition("::")[0] not in modules}
    near = zip_longest(*(nearest(_change(path, texts[path]), tests) for path in most))
    in_turn = dict.fromkeys(test for row in near for test in row if test is not None)
    return [*modules, *islice(in_turn, NEAREST)]


def nearest(change: Mapping[str, int], tests: Mapping[str, Words]) -> list[str]:
    """Those that have words of a change, nearest first, always alike (https://en.wikipedia.org/wiki/Okapi_BM25)."""
    average = sum(words.length for words in tests.values()) / max(1, len(tests))
    shared = {test: words.of(change) for test, words in tests.items()}
    weights = {
        word: change[word] / (change[word] + 1) * math.log(1 + (len(tests) - count + 0.5) / (count + 0.5))
        for word, count in Counter(word for counts in shared.values() for word in counts).items()
    }
    scores: dict[str, float] = {}
    for test, counts in shared.items():
        fitting = _SATURATION * (1 - _LENGTH + _LENGTH * tests[test].length / average)
        scores[test] = sum(weights[word] * count / (count + fitting) for word, count in sorted(counts.items()))
    return sorted((test for test in scores if scores[test] > 0), key=lambda test: -scores[test])


def _change(path: str, text: str) -> Counter[str]:
    module = path.rpartition(".")[0].replace("/", ".")
    return _words(text) + Counter([*_words(path).elements(), module] * _WEIGHT)


@cache
def _tests(root: Path) -> dict[str, Words]:
    """The words of each test: its own, and those of what its module has beside the tests."""
    tests: dict[str, Words] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        name = path.relative_to(root).as_posix()
        if _is_elsewhere(name) or path.parent.name == "long":
            continue
        text = path.read_text()
        # As ruff parts them.
        parts = [(_TEST.search(part), part) for part in text.split("\n\n\n")]
        beside = _words("\n".join(part for test, part in parts if test is None))
        beside.update([*_words(name).elements(), *_imported(root, text)])
        tests.update((f"{name}::{test[1]}", Words(_words(part), beside)) for test, part in parts if test is not None)
    return tests


def _words(text: str) -> Counter[str]:
    """Names as they are, and the words in them."""
    words = Counter[str]()
    for name, count in Counter(re.findall(r"[A-Za-z_]\w+", text)).items():
        words[name.lower()] += count
        for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name):
            words[word.lower().rstrip("s")] += count
    return words


def _imported(root: Path, text: str) -> set[str]:
    """The modules that a text imports, also by modules of tests."""
    found, left = set[str](), [text]
    while left:
        for package, names in _IMPORT.findall(left.pop()):
            for name in {package, *(f"{package}.{name}" for name in re.findall(r"\w+", names))} - found:
                found.add(name)
                path = root / f"{name.replace('.', '/')}.py"
                if name.startswith("tests.") and path.is_file():
                    left.append(path.read_text())
    return found


def _is_test(path: str) -> bool:
    return re.fullmatch(r"tests/(?:.+/)?test_\w+\.py", path) is not None


def _is_elsewhere(path: str) -> bool:
    return Path(path).parts[1] in _ELSEWHERE


def _base(root: Path, rev: str) -> str:
    """The commit that a change began at."""
    if rev and not _git(root, "rev-parse", "--verify", "--quiet", f"{rev}^{{commit}}", missing=True):
        raise NoCommit(f"no commit is called {rev!r}")
    for main_branch in (rev,) if rev else _MAIN:
        if base := _git(root, "merge-base", "HEAD", main_branch, missing=True).strip():
            return base
    if rev:
        raise NoCommit(f"{rev!r} and what is here began at no common commit")
    return _git(root, "rev-parse", "HEAD").strip()


def _git(root: Path, *arguments: str, missing: bool = False) -> str:
    """What git says; with `missing`, nothing where there is no such thing."""
    try:
        said = subprocess.run(
            ["git", "--literal-pathspecs", *arguments],
            cwd=root,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        raise NoCommit("git is not here, which knows what has changed") from None
    if said.returncode != 0 and not missing:
        raise NoCommit(said.stderr.strip())
    return said.stdout


def _split(names: str) -> list[str]:
    return [name for name in names.split("\0") if name]


if __name__ == "__main__":
    sys.exit(main("".join(sys.argv[1:2])))
