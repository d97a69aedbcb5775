"""tus-js-client, as docs/clients.md sets it up, in Chromium."""

from pathlib import Path
from typing import Any

import pytest

from tests.clients.site import Person
from tests.support.content import MIB, Content
from tests.support.process import Mortal
from tests.support.relay import relaying
from tests.support.servers import PrivateRedis

CONTENT = Content(8 * MIB + 321, seed=192, name="Zürich 🏔.mp4")

SEND = """async (options) => {
  const [file] = document.querySelector("#file").files;
  window.ended = null;
  window.progress = 0;
  window.upload = await send(file, token, {
    onProgress: (bytes) => (window.progress = bytes),
    onSuccess: () => (window.ended = "complete"),
    onError: (error) => (window.ended = error.originalResponse?.getStatus() ?? String(error)),
    ...options,
  });
}"""


async def begin(person: Person, path: Path, **options: Any) -> None:
    await person.choose(path)
    await person.page.evaluate(SEND, options)


async def end(person: Person) -> Any:
    await person.until("ended !== null")
    return await person.page.evaluate("ended")


async def begin_and_hold(person: Person, path: Path, sent: int, **options: Any) -> None:
    """Begin in requests of a MiB, and hold them once so many were sent."""
    await person.allow(sent)
    await begin(person, path, chunkSize=MIB, **options)
    await person.holds(1)


async def arrives(person: Person) -> None:
    assert await end(person) == "complete"
    assert person.sha256s() == {CONTENT.name: CONTENT.sha256}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / CONTENT.name
    made.write_bytes(CONTENT.data)
    return made


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunkSize": 3 * MIB},
        {"uploadDataDuringCreation": True},
        {"uploadDataDuringCreation": True, "chunkSize": 3 * MIB},
        {"overridePatchMethod": True},
        {"addRequestId": True, "headers": {"X-Requested-With": "XMLHttpRequest"}},
    ],
    ids=str,
)
async def test_a_file_arrives_as_it_was(person: Person, path: Path, options: dict[str, Any]) -> None:
    await begin(person, path, **options)
    await arrives(person)
    assert await person.page.evaluate("progress") == CONTENT.size
    assert await person.page.evaluate("localStorage.length") == 0


async def test_an_empty_file_arrives(person: Person, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    await begin(person, tmp_path / "empty")
    assert await end(person) == "complete"
    assert [(file.name, file.size) for file in person.files()] == [("empty", 0)]


async def test_a_paused_upload_goes_on_where_it_was(person: Person, path: Path) -> None:
    await begin_and_hold(person, path, 2)
    await person.page.evaluate("upload.abort()")
    with person.client() as client:
        (upload,) = client.uploads()
        assert upload.received_bytes == 2 * MIB
    await person.allow()
    await person.page.evaluate("upload.start()")
    await arrives(person)
    assert await person.offsets() == list(range(0, CONTENT.size, MIB))


async def test_after_a_reload_the_same_file_goes_on_where_it_was(person: Person, path: Path) -> None:
    await begin_and_hold(person, path, 3)
    await person.open()
    await begin(person, path)
    await arrives(person)
    assert await person.offsets() == [3 * MIB]


async def test_what_was_cancelled_elsewhere_begins_anew(person: Person, path: Path) -> None:
    """As the client does when it is told that what it knows of is gone."""
    await begin_and_hold(person, path, 1)
    with person.client() as client:
        client.cancel(client.uploads()[0].id)
    await person.open()
    await begin(person, path)
    assert await end(person) == "complete"
    assert await person.offsets() == [0]
    assert [status for status in await person.statuses() if status[0] == "HEAD"] == [("HEAD", 404)]


async def test_a_killed_server_costs_no_acknowledged_byte(person: Person, mortal: Mortal, path: Path) -> None:
    with relaying(mortal.server.port, 5 * MIB, mortal.kill_and_start) as relay:
        person.url, person.token = relay.url, mortal.token
        await person.open()
        await begin(person, path, chunkSize=2 * MIB)
        assert await end(person) == "complete"
        assert relay.is_cut
        assert relay.sent_bytes < CONTENT.size + 3 * MIB
        assert person.sha256s() == {CONTENT.name: CONTENT.sha256}
        offsets = await person.offsets()
        assert offsets[:3] == [0, 2 * MIB, 4 * MIB]
        assert min(offsets[3:]) >= 4 * MIB, "4 MiB were acknowledged before"


async def test_a_server_that_has_no_redis_for_a_while_only_costs_time(
    person: Person, tmp_path: Path, origin: str, own_redis: PrivateRedis, path: Path
) -> None:
    installation = Mortal(tmp_path / "server", CORS_ORIGINS=origin, REDIS_URL=own_redis.url)
    try:
        person.url, person.token = installation.url, installation.token
        await person.open()
        await begin_and_hold(person, path, 2)
        await person.page.evaluate("upload.abort()")
        own_redis.kill()
        await person.allow()
        await person.page.evaluate("upload.start()")
        await person.until("gate.requests.filter(({ method, status }) => method === 'HEAD' && status).length > 1")
        own_redis.start()
        await arrives(person)
        assert await person.offsets() == list(range(0, CONTENT.size, MIB))
    finally:
        installation.end()


async def test_a_network_that_is_cut_and_returns_only_costs_time(person: Person, path: Path) -> None:
    await begin_and_hold(person, path, 2)
    await person.page.context.set_offline(True)
    await person.allow()
    assert "failed to upload chunk" in await end(person), "offline it does not try again by itself"
    await person.page.context.set_offline(False)
    await person.page.evaluate("ended = null; upload.start()")
    await arrives(person)
    assert await person.offsets() == [0, MIB, 2 * MIB, *range(2 * MIB, CONTENT.size, MIB)]


async def test_a_request_that_another_one_displaced_goes_on_after_it(person: Person, path: Path) -> None:
    """Two tabs with one file: the newest request wins, and the other one goes on where that ended."""
    await begin_and_hold(person, path, 1)
    tab = Person(await person.page.context.new_page(), person.origin, person.url, person.token)
    await tab.open()
    await begin(tab, path)
    assert await end(tab) == "complete"
    assert await tab.offsets() == [MIB]
    await person.allow()
    await arrives(person)
    assert ("PATCH", 409) in await person.statuses()


async def test_a_token_is_asked_for_before_each_request(person: Person, path: Path) -> None:
    """So none expires on the way."""
    await person.page.evaluate(
        "() => { const ask = token; window.asked = 0; window.token = () => (asked += 1, ask()); }"
    )
    await begin(person, path, chunkSize=4 * MIB)
    assert await end(person) == "complete"
    assert await person.page.evaluate("asked") == len(await person.statuses()) == 4


@pytest.mark.parametrize(
    ("token", "size", "status", "code"),
    [("wrong", 1, 401, "unauthenticated"), (None, 32 * MIB + 1, 413, "quota-exceeded")],
)
async def test_what_is_refused_is_told_before_it_is_sent(
    person: Person, tmp_path: Path, token: str | None, size: int, status: int, code: str
) -> None:
    path = tmp_path / "refused"
    with path.open("wb") as opened:
        opened.truncate(size)
    person.token = token or person.token
    await person.open()
    await begin(person, path)
    assert await end(person) == status
    assert await person.statuses() == [("POST", status)]
    assert code in await person.page.evaluate("upload._req.getUnderlyingObject().responseText")


async def test_what_is_cancelled_gives_its_room_back(person: Person, path: Path) -> None:
    await begin_and_hold(person, path, 1)
    await person.page.evaluate("upload.abort(true)")
    person.check_nothing_is_held()


async def test_a_stream_whose_length_nobody_knows_arrives(person: Person, path: Path) -> None:
    """`uploadLengthDeferred`."""
    assert "creation-defer-length" in person.extensions()
    await person.choose(path)
    await person.page.evaluate(
        """async () => {
            const [file] = document.querySelector("#file").files;
            const upload = new tus.Upload(file.stream().getReader(), {
              endpoint: `${serverUrl}/resumable`,
              metadata: { filename: file.name },
              headers: { Authorization: `Bearer ${await token()}` },
              uploadLengthDeferred: true,
              chunkSize: 3 << 20,
              onSuccess: () => (window.ended = "complete"),
              onError: (error) => (window.ended = String(error)),
            });
            window.ended = null;
            upload.start();
        }"""
    )
    await arrives(person)


async def test_parts_that_are_sent_side_by_side_become_one_file(person: Person, path: Path) -> None:
    """`parallelUploads`, and after a reload once more."""
    assert "concatenation" in person.extensions()
    await person.allow(4)
    await begin(person, path, parallelUploads=3, chunkSize=MIB)
    await person.holds(3)
    await person.open()
    await begin(person, path, parallelUploads=3, chunkSize=MIB)
    assert await end(person) == "complete"
    assert len(await person.offsets()) < 9, "what was there is not sent again"
    await person.arrived({CONTENT.name: CONTENT.sha256})  # parts are put together in the background
