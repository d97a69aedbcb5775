"""schemathesis against a server: what `/openapi.json` says is what the server does, one request at a time and in a row."""

import json
import re
import sys
from pathlib import Path

import httpx2

from tests.support.chosen import PLACES, chosen
from tests.support.process import Server, ended, owner_token, run_program

_SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
_CONFIGURATION = Path(__file__).with_name("schemathesis.toml")


def test_the_server_does_what_its_description_says(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = {"DATA": str(data), "DURABILITY": "process", "MAX_OPEN_UPLOADS": "10000", "PROOF_MAX_PROBES": "1000000"}
    # So that no size it thinks of is too large for the disk of this machine.
    settings |= {"MAX_FILE_SIZE": "256MiB", "FREE_SPACE_FLOOR": "0", "MAX_WRONG_TOKENS": "1000000"}
    # Its HTTP client takes any interim response but 100 for the answer.
    settings |= {"INTERIM_RESPONSES": "false"}
    server = Server(tmp_path / "log", settings)
    with ended(server):
        token = owner_token(data)
        configuration = tmp_path / "schemathesis.toml"
        configuration.write_text(_CONFIGURATION.read_text() + _covering_some(server.url))
        run = run_program(
            [
                *(_SCHEMATHESIS, "--config-file", configuration, "run", f"{server.url}/openapi.json", "--no-color"),
                *("--checks", "all", "--header", f"Authorization: Bearer {token}"),
            ],
            cwd=tmp_path,
            check=False,
        )
        log = server.output()
    assert run.returncode == 0, run.stdout + run.stderr
    for phase in ("Coverage", "Fuzzing", "Stateful"):
        assert re.search(rf"^ ✅  {phase} ", run.stdout, flags=re.MULTILINE), run.stdout
    covered = re.search(r"API Links: +([0-9]+) covered", run.stdout)
    assert covered is not None
    assert int(covered[1]) > 0, run.stdout
    assert "request failed" not in log, log


def _covering_some(url: str) -> str:
    """Settings that leave the edges of most paths, which are thousands of requests, to other commits."""
    paths = sorted(httpx2.get(f"{url}/openapi.json", timeout=60).json()["paths"])
    elsewhere = [path for path in paths if path not in chosen(paths, 8 * PLACES, "schemathesis")]
    if not elsewhere:
        return ""
    return f"\n[[operations]]\ninclude-path = {json.dumps(elsewhere)}\nphases.coverage.enabled = false\n"
