"""`uploader scrub` beside a server that runs, cut short and run again."""

import json
import signal
import subprocess
from pathlib import Path

from tests.support.content import KIB, Content
from tests.support.process import UPLOADER, Server, client_of_owner, ended, environment, run_cli

CONTENTS = [Content(20 * 64 * KIB, seed=seed, name=f"{seed}.bin") for seed in range(3)]


def test_a_flipped_bit_is_reported_while_the_server_runs_and_after_a_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = {"DATA": str(data), "FREE_SPACE_FLOOR": "0"}
    server = Server(tmp_path / "server.log", settings)
    with ended(server), client_of_owner(server.url, data) as client:
        for content in CONTENTS:
            body = {"name": content.name, "size": content.size, "chunk_size": content.size}
            assert client.post(f"/files/{content.md5}", json=body).status_code == 201
            assert client.put(f"/files/{content.md5}/chunks/0", content=content.data).status_code == 201

        sound = run_cli(settings, "scrub", "--rate", "0")
        total = sum(content.size for content in CONTENTS)
        assert (sound.returncode, sound.stderr) == (0, "")
        assert sound.stdout == f"0 damaged; checked {len(CONTENTS)} blobs, {total} bytes\n"

        rotten = CONTENTS[0].sha256
        path = data / "blobs" / rotten[:2] / rotten[2:4] / rotten
        altered = bytearray(path.read_bytes())
        altered[12345] ^= 16
        path.write_bytes(altered)
        # At this rate a pass takes longer than the test.
        slow = subprocess.Popen(
            [UPLOADER, "scrub", "--rate", "64KiB/s", "--json"], env=environment(settings), stdout=subprocess.PIPE
        )
        try:
            slow.wait(timeout=2)
        except subprocess.TimeoutExpired:
            slow.send_signal(signal.SIGKILL)
        assert slow.wait() == -signal.SIGKILL
        assert slow.stdout is not None
        slow.stdout.close()

        found = run_cli(settings, "scrub", "--rate", "0", "--json")
        damaged, summary = (json.loads(line) for line in found.stdout.splitlines())
        assert found.returncode == 1
        assert (damaged["event"], damaged["sha256"], damaged["problem"]) == ("damaged", rotten, "altered")
        assert [(file["user_id"], file["name"]) for file in damaged["files"]] == [("owner", "0.bin")]
        assert summary == {
            "event": "summary",
            "checked": {"blobs": len(CONTENTS), "bytes": total},
            "damaged": 1,
        }
        assert client.get("/livez").status_code == 200
        assert path.read_bytes() == altered, "a scrub touches nothing"
