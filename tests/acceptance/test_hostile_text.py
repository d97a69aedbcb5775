"""Text of strangers on its way to people: whatever a server says, a terminal only shows it."""

import json
import os
import pty
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Commands
from tests.support.lying import lying
from tests.support.process import UPLOADER
from tests.support.waiting import SERVER_SECONDS
from uploader.cli.terminal import shown

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj\u2066\u2028forged\r\nlines\u200b\ufeff\U000e0041\x7f\b"
HIDING = "\u200b\u2060\U000e0041"
# What a status line can hold.
REASON = "No\x1b]0;owned\x07\x9b2J\x7f"
NOW = "2026-11-22T10:00:00Z"
ID = "0" * 32
FILE = {"id": ID, "name": HOSTILE, "md5": None, "sha256": "0" * 64, "size": 1, "created_at": NOW, "instant": False}
DELETED = FILE | {"deleted_at": NOW, "expires_at": NOW, "reason": HOSTILE, "detail": HOSTILE}
FOLDER = {"name": f"{HOSTILE}/", "files": 1, "bytes": 1}
LINK = {"id": HOSTILE, "kind": "download", "url": f"/s/{'a' * 22}", "name": HOSTILE, "label": HOSTILE}
LINK |= {"created_at": NOW, "expires_at": "2099-01-01T00:00:00Z"}
UPLOAD = {
    "id": HOSTILE,
    "md5": None,
    "name": HOSTILE,
    "size": 2,
    "chunk_size": 1,
    "chunk_count": 2,
    "received_bytes": 0,
}
UPLOAD |= dict[str, Any](missing=[], state=HOSTILE, created_at=NOW, expires_at=NOW)
USAGE = dict.fromkeys(("total_space", "use_space_finished", "use_space_unfinished", "reserved", "available"), 9)
PROBLEM = {"code": HOSTILE, "title": HOSTILE, "detail": HOSTILE}

SERVED = ["queue", "work", HOSTILE, "--", "true"]
COMMANDS = [
    ["ls"],
    ["ls", "-r"],
    ["ls", "--versions", HOSTILE],
    ["ls", ID],
    ["ls", "*"],
    ["get", ID],
    ["get", HOSTILE],
    ["get", "*", "-o", "there"],
    ["rm", ID],
    ["rm", "-r", HOSTILE],
    ["mv", ID, HOSTILE],
    ["mv", HOSTILE, "b"],
    ["mkdir", HOSTILE],
    ["trash"],
    ["trash", "empty"],
    ["restore", ID],
    ["restore", HOSTILE],
    ["usage"],
    ["uploads"],
    ["cancel", "--all"],
    ["cancel", HOSTILE],
    ["share", HOSTILE],
    ["share", "a"],
    ["links"],
    ["unshare", HOSTILE],
    ["put", "file"],
    ["put", HOSTILE.replace("/", "")],
    ["put", "file", "--go-on", HOSTILE],
    ["put", "file", "--to", HOSTILE],
    ["put", "file", "--name", HOSTILE],
    ["put", "file", "--chunk-size", HOSTILE],
    ["put", "file", f"--{HOSTILE}"],
    ["sync", ":", "there"],
    ["sync", "tree", ":"],
    ["sync", HOSTILE, ":"],
    [HOSTILE],
    ["get", f"https://{HOSTILE}/s/x"],
    SERVED,
    ["queue", "work", "scan", "--lease", HOSTILE, "--", "true"],
]
JSON = [["ls"], ["trash"], ["links"], ["uploads"], ["get", HOSTILE], ["sync", ":", "there"], ["cancel", HOSTILE]]


def answer(target: str) -> dict[str, Any]:
    """What is asked for, with hostile text wherever there is text."""
    path = target.partition("?")[0]
    if path == "/me/files":
        return {"files": [FILE], "next": None, "folders": [FOLDER]}
    if path.startswith("/me/files/"):
        return FILE
    if path.startswith("/me/trash"):
        return {"files": [DELETED], "next": None, "results": [{"id": ID, "status": 400, "problem": PROBLEM}]}
    if path.startswith("/me/folders"):
        return {"folders": [{"name": f"{HOSTILE}/"}], "next": None, "name": HOSTILE}
    if path.startswith("/me/links"):
        return LINK | {"links": [LINK]}
    if path == "/files/batch":
        return {"results": [{"name": HOSTILE, "status": 400, "problem": PROBLEM}]}
    if path.startswith("/uploads"):
        return {"uploads": [UPLOAD], "state": HOSTILE}
    return USAGE | {"chunk_size": {"default": 1 << 20, "max": 1 << 20}}


def is_shown(text: str) -> bool:
    return all(line == shown(line) for line in text.split("\n"))


# Of the others a few stand for all: what is wrong takes one way.
CASES = {
    "answers": COMMANDS + [[*words, "--json"] for words in JSON],
    "problems": [["ls"], ["get", ID], ["put", "file"], ["sync", "tree", ":"], ["links", "--json"], SERVED],
    "statuses": [["ls"], ["put", "file"], ["usage", "--json"], SERVED],
}


@pytest.mark.parametrize("says", CASES)
def test_client_only_shows_what_a_hostile_server_says(says: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "tree").mkdir(parents=True)
    for path in ("file", "tree/a", HOSTILE.replace("/", ""), f"tree/{HOSTILE}"):
        (home / path).write_bytes(b"a")

    def reply(target: str) -> tuple[int, dict[str, str], list[bytes]]:
        if says == "statuses":
            return 404, {"Content-Type": "text/plain"}, [HOSTILE.encode()]
        if says == "problems":
            return (
                409,
                {"Content-Type": "application/problem+json"},
                [json.dumps(PROBLEM | {"detail": f"{HOSTILE}\ud800\udc9b"}).encode()],
            )
        return 200, {"Content-Type": "application/json"}, [json.dumps(answer(target)).encode()]

    seen = []
    with lying(says=reply, reason=REASON) as liar:
        commands = Commands(home, liar.url, "token")
        for words in CASES[says]:
            run = commands.run(*words)
            said = run.stdout + run.stderr
            assert "Traceback" not in said, said
            assert is_shown(said), (words, said)
            if words[-1] == "--json":
                assert all(json.loads(line) for line in run.stdout.splitlines())
            seen.append(said)
    assert sum("owned" in said for said in seen) >= len(seen) * 3 // 4
    assert "\\u001b]0;owned\\u0007" in "".join(seen)
    assert not [path for path in tmp_path.iterdir() if path != home]


def test_terminal_shows_bars_and_tables_of_hostile_names(tmp_path: Path) -> None:
    """On a real terminal, where bars are drawn: no sequence but those of our own. The names are ones that a server takes."""
    listed = {
        "files": [FILE | {"id": f"{number:032}", "name": f"{number}{HIDING}"} for number in range(3)],
        "next": None,
    }

    def reply(target: str) -> tuple[int, dict[str, str], Iterator[bytes]]:
        if "/content" in target or "/archive" in target:
            return 503, {"Content-Type": "text/plain"}, iter((HOSTILE.encode(),))
        return 200, {"Content-Type": "application/json"}, iter((json.dumps(listed).encode(),))

    with lying(says=reply, reason=REASON) as liar:
        environment = Commands(tmp_path, liar.url, "token").environment | {"TERM": "xterm", "COLUMNS": "100"}
        parent, child = pty.openpty()
        words = [str(UPLOADER), "get", "*", "-o", "there", "--patience", "2s"]
        with subprocess.Popen(words, env=environment, cwd=tmp_path, stdin=child, stdout=child, stderr=child) as process:
            os.close(child)
            printed = b""
            try:
                while block := os.read(parent, 1 << 16):
                    printed += block
            except OSError:  # it is closed
                pass
            process.wait(SERVER_SECONDS)
        os.close(parent)
    left = re.sub(r"\x1b\[(\?7[lh]|[0-9;]*m|[0-9]*[AKJ])|\r", "", printed.decode())
    assert "owned" in left and shown(HIDING) in left and is_shown(left), left


def test_completion_offers_no_name_that_a_terminal_would_obey(tmp_path: Path) -> None:
    listed = {"files": [FILE, FILE | {"name": "aa"}], "folders": [FOLDER], "next": None}
    with lying(says=lambda _target: (200, {"Content-Type": "application/json"}, [json.dumps(listed).encode()])) as liar:
        commands = Commands(tmp_path, liar.url, "token")
        for shell in ("bash", "zsh", "fish"):
            separator = "\n" if shell == "bash" else " "
            asked = {
                "COMP_WORDS": separator.join(("uploader", "get", "a")),
                "COMP_CWORD": "a" if shell == "fish" else "2",
            }
            commands.environment |= asked | {"_UPLOADER_COMPLETE": f"{shell}_complete"}
            said = commands.run().stdout
            assert "aa" in said and is_shown(said) and "owned" not in said
