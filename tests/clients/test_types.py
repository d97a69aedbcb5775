"""The types of the Python client, as Pyright sees them. `tests/run` runs mypy over the same files."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.clients.site import HERE

ROOT = HERE.parents[1]
RIGHT = [*(ROOT / "docs" / "examples" / f"{name}.py" for name in ("blocking", "asynchronous"))]
RIGHT.append(ROOT / "tests" / "unit" / "test_client_facade.py")
WRONG = """from uploader.client import Client, File, Transfer

Client("http://localhost", conections=2)
client: Client = Client.from_link(1)
client.upload("a", nmae="b")
wrong: Transfer[str] = client.start("a")
page: list[File] = client.files()
"""


def complaints(*paths: Path) -> list[dict[str, Any]]:
    command: list[str | Path] = [
        HERE / "node_modules/.bin/pyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        *paths,
    ]
    ran = subprocess.run(command, capture_output=True, check=False)
    return [each for each in json.loads(ran.stdout)["generalDiagnostics"] if each["severity"] == "error"]


def test_pyright_finds_wrong_calls_of_the_client_and_no_others(tmp_path: Path) -> None:
    assert complaints(*RIGHT) == []
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    assert [each["range"]["start"]["line"] for each in complaints(wrong)] == [2, 3, 4, 5, 6]
