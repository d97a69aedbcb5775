"""The mutants fit the source: one that does not would prove nothing when it is killed."""

import re
from pathlib import Path
from textwrap import dedent

import pytest

from tests.mutants.places import Edit, edited, parsed, read
from tests.mutants.table import MACHINE, MUTANTS, PACKAGE, mutated

SOURCES = read(PACKAGE)


def test_what_a_mutant_changes_is_in_the_source_exactly_once() -> None:
    misfits: dict[str, str] = {}
    for mutant in MUTANTS:
        try:
            sources = mutated(SOURCES, mutant)
            for changed in (path for path in sources if sources[path] != SOURCES[path] and path.suffix == ".py"):
                parsed(sources[changed])
        except (ValueError, SyntaxError) as error:
            misfits[mutant.name] = str(error)
    assert misfits == {}


async def test_the_page_about_reliability_tells_every_mutant_and_what_catches_it() -> None:
    page = (PACKAGE.parent / "docs/reliability.md").read_text()
    told = re.findall(r"^\| (.+) \| (the state machine|`tests/.+`) \|$", page, flags=re.MULTILINE)
    by = {MACHINE: "the state machine"}
    assert told == [(mutant.name, by.get(mutant.tests, f"`{mutant.tests}`")) for mutant in MUTANTS]
    assert len({name for name, _ in told}) == len(told)


PLAIN = '''
class Box:
    def put(self, thing: str) -> None:
        """Put a thing in."""
        if self._full():
            raise ValueError("full")
        self._store(thing, at=len(self._things))
'''
FORMATTED = """
class Box:
    async def put(
        self,
        thing: str,
    ) -> None:
        if self._full( ):  # nothing more fits

            raise ValueError('full')
        self._store(
            thing,  # as it is
            at=len(self._things),
        )
"""
LUA = """
-- if full then return 0 end
local full = redis.call('GET',  KEYS[1])
if full then
  return 0
end
return {ARGV[1], 'a b'}
"""


def changed(name: str, source: str, *edit: str) -> str:
    """What an edit makes of a file, among others."""
    sources = {Path("a/other.py"): "def other() -> None:\n    pass\n", Path(name): dedent(source)}
    return edited(sources, Edit(*edit))[Path(name)]


@pytest.mark.parametrize("name", ["a/box.py", "a/b/renamed.py"])
@pytest.mark.parametrize("where", ["Box.put", "put"])
@pytest.mark.parametrize("source", [PLAIN, FORMATTED], ids=["plain", "formatted"])
def test_a_place_is_found_wherever_it_went_and_however_it_is_formatted(name: str, where: str, source: str) -> None:
    assert "self._store(None)" in changed(
        name, source, where, "self._store(thing, at=len(self._things))", "self._store(None)"
    )
    without = changed(name, source, where, 'if self._full(): raise ValueError("full",)', "pass")
    assert "ValueError" not in without
    assert "self._store" in without


def test_only_the_pattern_is_replaced_and_further_lines_are_indented_as_the_place() -> None:
    assert changed("a.py", PLAIN, "put", "self._full()", "False") == PLAIN.replace("self._full()", "False")
    made = changed("a.py", PLAIN, "put", 'raise ValueError("full")', "if thing:\n    return\nself.empty()")
    assert made == PLAIN.replace(
        '            raise ValueError("full")\n',
        "            if thing:\n                return\n            self.empty()\n",
    )


def test_a_pattern_is_no_part_of_a_name_a_text_or_a_comment() -> None:
    source = "def f(full):\n    # full\n    fuller = 'full'\n    return full\n"
    assert changed("a.py", source, "f", "return full", "return 1").endswith("    return 1\n")
    with pytest.raises(ValueError, match="has 0 times 'ful'"):
        changed("a.py", source, "f", "ful", "")
    # Offsets count characters, and not bytes.
    source = 'ä = "äöü"\ndef f():\n    return "ä", 1\n'
    assert changed("a.py", source, "f", "1", "2") == source.replace("1", "2")


@pytest.mark.parametrize("name", ["a/script.lua", "elsewhere/script.lua"])
def test_a_place_in_a_script_is_found_by_the_name_of_its_file(name: str) -> None:
    made = changed(name, LUA, "script.lua", 'redis.call("GET", KEYS[1])', "false")
    assert made == LUA.replace("redis.call('GET',  KEYS[1])", "false")
    assert changed(name, LUA, "script.lua", "if full then return 0 end", "").count("return 0") == 1, "in the comment"
    with pytest.raises(ValueError, match="has 0 times"):
        changed(name, LUA, "script.lua", "'ab'", "")


def test_two_functions_or_classes_of_one_name_are_an_error_that_tells_both() -> None:
    sources = {Path("a.py"): PLAIN, Path("b.py"): PLAIN.replace("Box", "Chest")}
    with pytest.raises(ValueError, match=r"put is in a\.py and b\.py: name its class, too"):
        edited(sources, Edit("put", "self._full()", ""))
    assert edited(sources, Edit("Chest.put", "self._full()", "False"))[Path("a.py")] == PLAIN
    with pytest.raises(ValueError, match=r"Box\.put is in a\.py and b\.py"):
        edited({Path("a.py"): PLAIN, Path("b.py"): PLAIN}, Edit("Box.put", "self._full()", ""))


def test_a_function_of_a_module_goes_before_methods_of_its_name() -> None:
    source = f"{PLAIN}\ndef put() -> None:\n    self._full()\n"
    assert changed("a.py", source, "put", "self._full()", "0") == f"{PLAIN}\ndef put() -> None:\n    0\n"


@pytest.mark.parametrize(
    ("where", "pattern", "told"),
    [
        *(
            (where, "thing", f"nothing is named {where}")
            for where in ("missing", "Chest.put", "ut", "missing.lua", "Box")
        ),
        *(("put", pattern, "has 0 times") for pattern in ("self._empty()", "", "# only a comment")),
        ("put", "self", r"put in a\.py has 4 times 'self'"),
    ],
)
def test_what_is_not_there_just_once_is_an_error(where: str, pattern: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        changed("a.py", PLAIN, where, pattern, "")


def test_the_sources_are_all_of_a_package_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("a.py", "inner/b.lua", "inner/c.html"):
        (tmp_path / name).write_text(name)
    assert read(tmp_path) == {tmp_path / "a.py": "a.py", tmp_path / "inner/b.lua": "inner/b.lua"}
