"""Secrets stay where they are: in no log line, no answer, no metric and no list of processes."""

import json
import time
from pathlib import Path

from tests.support.content import KIB, Content
from tests.support.jwts import Signer
from tests.support.process import UPLOADER, Server, ended
from tests.support.sending import client_with, get, send

JWT_SECRET = "jwt-secret-of-the-installation-0123456789"
SECRET = "the-secret-of-the-installation-012345678"
CONTENT = Content(100 * KIB)


def command_lines() -> str:
    """What anybody on the machine sees of all processes."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.append((process / "cmdline").read_text(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)


def test_no_secret_is_told_to_anybody(tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data"), "AUTH": "jwt", "JWT_SECRET": JWT_SECRET, "SECRET": SECRET}
    signer = Signer("HS256", JWT_SECRET.encode())
    good = signer.token({"sub": "alice", "exp": int(time.time()) + 600, "scope": "admin"})
    expired = signer.token({"sub": "alice", "exp": 1})
    forged = Signer("HS256", b"a secret that nobody knows of, and more").token({"sub": "alice", "exp": 1})
    server = Server(tmp_path / "log", settings | {"LOG_LEVEL": "debug", "LOG_FORMAT": "json"}, program=(UPLOADER,))
    with ended(server):
        answers = []
        with client_with(good, server.url) as client:
            answers.append(send(client, CONTENT))
            file_path = f"/me/files/{answers[-1].json()['file']['id']}"
            link = client.post(f"{file_path}/link").json()["url"]
            signature = link.rpartition("=")[2]
            answers += [client.get("/admin/usage"), client.get("/metrics")]
            assert answers[-1].status_code == 200
        for token in (expired, forged, good[:-1], JWT_SECRET, SECRET):
            answers.append(get(f"{server.url}/me/usage", token))
            assert answers[-1].status_code == 401
        answers += [get(server.url + link), get(f"{server.url}{link}0")]
        assert [answer.status_code for answer in answers[-2:]] == [200, 401]
        answers += [get(server.url + open_to_all) for open_to_all in ("/config", "/readyz", "/docs")]
        processes = command_lines()
        assert "uploader" in processes
        assert server.stop() == 0
    told = "\n".join(answer.text + repr(answer.headers) for answer in answers)
    log = server.output()
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert sum(line["event"] == "request" for line in lines) >= len(answers)
    assert {line.get("user_id") for line in lines if line["event"] == "request"} == {None, "alice"}
    for secret in (JWT_SECRET, SECRET, good, expired, forged, signature):
        for name, place in (("log", log), ("answers", told), ("processes", processes)):
            assert secret not in place, f"{secret} is in the {name}"
    for place in (log, told):
        assert good.split(".")[2] not in place
