"""Counts the sentences that a reader has to decode: `python -m tests.support.english` lists them, `--record` records fewer.

A sentence of eight words or more is opaque if more than one word in seven is a pronoun or a joint. The counter finds missing
nouns. Good prose needs a reader.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_suffix(".txt")
_JOINTS = frozenset(
    "that those one ones it its what which whose who so such whoever whatever whether thereof".split()  # noqa: SIM905
)
# Lines of comments, or a comment behind code.
_COMMENTS = re.compile(r"(?:^ *#.*\n)+|(?<=\S  )# .*$", re.MULTILINE)
_MIN_WORDS, _MAX_SHARE = 8, 1 / 7
_CODE, _LINK, _FENCE = re.compile(r"`[^`]*`"), re.compile(r"\[([^\]]*)\]\([^)]*\)"), re.compile(r"```.*?```", re.DOTALL)
_PARAGRAPHS, _SENTENCES = re.compile(r"\n\s*\n|\n(?=[-|#*\d])"), re.compile(r"(?<=[.!?:;])\s+")


def opaque_sentences() -> dict[str, list[str]]:
    """Return the opaque sentences of each package, of the tests and of the pages."""
    found: dict[str, list[str]] = {}
    for folder in ("uploader", "tests", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".md") and not {"vendor", "node_modules"}.intersection(path.parts):
                inner = path.relative_to(ROOT).parts[:-1]
                package = "/".join(inner[:2]) if folder == "uploader" else folder
                texts = _prose_of_module(path.read_text()) if path.suffix == ".py" else _prose_of_page(path.read_text())
                found.setdefault(package, []).extend(s for text in texts for s in _sentences(text) if is_opaque(s))
    return found


def recorded() -> dict[str, int]:
    """Return how many opaque sentences each package may have."""
    return {package: int(count) for package, count in map(str.split, RECORD.read_text().splitlines())}


def _prose_of_module(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            yield ast.get_docstring(node) or ""
    for block in _COMMENTS.findall(text):
        yield " ".join(line.strip().lstrip("# ") for line in block.splitlines())


def _prose_of_page(text: str) -> Iterator[str]:
    yield from _PARAGRAPHS.split(_FENCE.sub("", text))


def _sentences(paragraph: str) -> list[str]:
    plain = _LINK.sub(r"\1", _CODE.sub("CODE", paragraph))
    return _SENTENCES.split(" ".join(plain.split()))


def is_opaque(sentence: str) -> bool:
    words = re.findall(r"[A-Za-z']+", sentence)
    return len(words) >= _MIN_WORDS and sum(word.lower() in _JOINTS for word in words) > _MAX_SHARE * len(words)


def main() -> None:
    found, allowed = opaque_sentences(), recorded() if RECORD.exists() else {}
    if "--record" in sys.argv:
        counts = {package: min(len(each), allowed.get(package, len(each))) for package, each in found.items()}
        RECORD.write_text("".join(f"{package} {count}\n" for package, count in sorted(counts.items())))
        return
    for package, sentences in found.items():
        for sentence in sentences:
            sys.stdout.write(f"{package}: {sentence}\n")


if __name__ == "__main__":
    main()
