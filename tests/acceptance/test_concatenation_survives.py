"""A server that is killed again and again while it fills a whole with the bytes of its parts, and ends it all the same."""

import random
from itertools import pairwise
from pathlib import Path

import httpx2

from tests.support.content import MIB, Content
from tests.support.process import Server, client_of_owner, ended, wait_for

CONTENT = Content(60 * MIB + 4321, seed=22, name="joined.bin")
TUS = {"Tus-Resumable": "1.0.0"}


def received(http: httpx2.Client, upload_id: str) -> int:
    """The bytes that the whole has of its own by now; all of them once it is a file."""
    answer = http.get(f"/uploads/{upload_id}").json()
    return CONTENT.size if answer["state"] == "complete" else int(answer["upload"]["received_bytes"])


def test_a_whole_is_filled_by_whoever_lives(tmp_path: Path) -> None:
    data, chance = tmp_path / "data", random.Random(1)
    settings = {
        "DATA": str(data),
        "CHUNK_SIZE": "1MiB",
        "FREE_SPACE_FLOOR": "0",
        "MERGE_WAIT": "0s",
        "CLAIM_LEASE": "1s",
    }
    servers = [Server(tmp_path / "log", settings)]
    try:
        with client_of_owner(servers[-1].url, data) as http:
            borders = [0, *sorted(chance.sample(range(1, CONTENT.size), 2)), CONTENT.size]
            paths = []
            for start, end in pairwise(borders):
                head = {**TUS, "Upload-Concat": "partial", "Upload-Length": str(end - start)}
                head["Content-Type"] = "application/offset+octet-stream"
                opened = http.post("/resumable", content=CONTENT.data[start:end], headers=head)
                paths.append(httpx2.URL(opened.headers["location"]).path)
            told = http.post("/resumable", headers={**TUS, "Upload-Concat": f"final;{' '.join(paths)}"})
        path = httpx2.URL(told.headers["location"]).path
        upload_id, seen = path.rpartition("/")[2], [0]
        while seen[-1] < CONTENT.size:
            with ended(servers[-1]):  # SIGKILL
                pass
            servers.append(Server(tmp_path / "log", settings))
            with client_of_owner(servers[-1].url, data) as http:
                wait_for(lambda: received(http, upload_id) > seen[-1])
                seen.append(received(http, upload_id))
        assert seen == sorted(seen), "what was filled is filled"
        with client_of_owner(servers[-1].url, data) as http:
            wait_for(lambda: "upload-offset" in http.head(path, headers=TUS).headers)
            (file,) = http.get("/me/files").json()["files"]
            assert (file["sha256"], file["size"]) == (CONTENT.sha256, CONTENT.size)
            usage = http.get("/me/usage").json()
            assert (usage["use_space_unfinished"], usage["reserved"]) == (0, 0)
    finally:
        with ended(*servers):
            pass
