"""What the documents print: code that tests run as it stands there."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def blocks(document: Path, language: str, containing: str = "") -> list[str]:
    """The blocks of code in a language, in their order, that have a text in them."""
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [block for block in found if containing in block]
