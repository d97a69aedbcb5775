"""The drill: each fault, caused in real processes and files, comes back by itself, and nothing is lost."""

import json
import re
import sys
from pathlib import Path
from subprocess import CompletedProcess

from tests.soak.drill import FAULTS
from tests.support.process import Server, Settings, can_mount, client_of_owner, ended, environment, run_cli, run_program
from tests.support.waiting import SERVER_SECONDS

ROOT = Path(__file__).parents[3]


def run_drill(settings: Settings, *arguments: str) -> "CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.soak.drill", *arguments]
    return run_program(command, env=environment(settings), cwd=ROOT, check=False, timeout=SERVER_SECONDS)


def test_what_each_fault_takes_away_comes_back_by_itself(tmp_path: Path) -> None:
    drilled = run_drill({"DATABASE_URL": "mysql+asyncmy://nobody@127.0.0.1:1/none"}, str(tmp_path / "d"), "--json")
    outcomes = {outcome["fault"]: outcome for outcome in json.loads(drilled.stdout)}
    assert (drilled.returncode, drilled.stderr) == (0, ""), outcomes
    assert outcomes.keys() == FAULTS.keys()
    assert all(outcome["lost"] == [] for outcome in outcomes.values())
    assert [fault for fault, outcome in outcomes.items() if outcome["left_out"]] == (
        [] if can_mount() else ["full-disk"]
    )
    seen = {fault: " ".join(outcome["seen"]) for fault, outcome in outcomes.items()}
    assert "download 500 content-damaged" in seen["flipped-byte"]
    assert "download 200" in seen["flipped-byte-with-a-copy"]
    for fault in ("read-error", "lost-directory"):
        assert "download 503 unavailable" in seen[fault]
    assert "chunk 503 unavailable" in seen["stopped-redis"]
    assert "upload 201" in seen["locked-database"]
    if can_mount():
        assert "cancel 204 delete 204" in seen["full-disk"]
        assert "chunk 507 storage-full" in seen["full-disk"]


def test_a_drill_wants_a_directory_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    refused = run_drill({}, str(tmp_path))
    assert refused.returncode == 2
    assert "is not empty: a drill is for a scratch installation" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_backup_is_tried_by_restoring_it_into_a_drill(tmp_path: Path) -> None:
    data, backups = tmp_path / "data", str(tmp_path / "backups")
    server = Server(tmp_path / "log", {"DATA": str(data), "FREE_SPACE_FLOOR": "0"})
    with ended(server), client_of_owner(server.url, data) as client:
        assert client.post("/me/files?name=photo.jpg", content=b"photo").status_code == 201
        assert run_cli({"DATA": str(data)}, "backup", backups).returncode == 0
    drilled = run_drill({}, str(tmp_path / "d"), "--backup", backups, "--fault", "kill")
    assert drilled.returncode == 0, drilled.stderr
    told = r"kill: kill everything\n  meanwhile: nobody answers\n  came back after \S+ s, nothing lost\nIn the end all .*\n"
    assert re.fullmatch(told, drilled.stdout)
    drilled = run_drill({}, str(tmp_path / "e"), "--backup", str(data), "--fault", "kill")
    assert (drilled.returncode, drilled.stderr.startswith("uploader: restore-backup ")) == (1, True)
