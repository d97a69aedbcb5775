"""The client of whoever has a link and no account, and the links of one's own."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.content import KIB, MIB, Content
from tests.support.stack import Stack
from tests.support.uploading import PATIENCE, Wire, is_chunk, nothing
from uploader.client import (
    AsyncClient,
    Link,
    LinkExhausted,
    LinkGone,
    LocalFile,
    NotFound,
    Unreachable,
    WrongPassword,
)

OPTIONS: dict[str, Any] = {"patience": PATIENCE, "chunk_size": 64 * KIB, "hash_first_bytes": 128 * KIB}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where sessions are kept."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "uploader" / "links"


async def visitor(link: Link, wire: Wire, **options: Any) -> AsyncClient:
    return await AsyncClient.from_link(link.url, http_transport=wire, **OPTIONS | options)


async def test_links_of_ones_own_are_made_listed_changed_and_revoked(stack: Stack, client: AsyncClient) -> None:
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(days=2)
    asked: dict[str, Any] = {
        "label": "Homework",
        "expires_at": until,
        "password": "pw",
        "max_files": 3,
        "max_bytes": MIB,
    }
    made = await client.make_link("inbox/", "upload", **asked)
    assert made.url.startswith("http://") and "/s/" in made.url
    assert (made.kind, made.name, made.label, made.has_password, made.max_files) == (
        "upload",
        "inbox/",
        "Homework",
        True,
        3,
    )
    assert made.expires_at == until
    await client.upload(b"a", "a.txt")
    other = await client.make_link("a.txt", max_downloads=1)
    assert await client.links() == [other, made]
    changed = await client.change_link(made.id, {"label": "Essays", "password": None})
    assert (changed.label, changed.has_password) == ("Essays", False)
    await client.revoke_link(made.id)
    assert [link.id for link in await client.links()] == [other.id]
    with pytest.raises(NotFound):
        await client.make_link("none.txt")


async def test_a_stranger_sends_all_ways_and_another_run_goes_on(
    stack: Stack, client: AsyncClient, wire: Wire, tmp_path: Path, home: Path
) -> None:
    link = await client.make_link("inbox/", "upload", password="open sesame")
    with pytest.raises(WrongPassword):
        await visitor(link, wire)
    with pytest.raises(WrongPassword):
        await visitor(link, wire, password="wrong")
    content = Content(5 * 64 * KIB + 1)
    large = tmp_path / "large.bin"
    large.write_bytes(content.data)

    async def break_off(request: Any) -> None:
        if is_chunk(request, 3):
            raise Unreachable(retryable=False)

    wire.before = break_off
    asked = list[str]()

    def password() -> str:
        asked.append("asked")
        return "open sesame"

    async with await visitor(link, wire, password=password) as stranger:
        with pytest.raises(Unreachable):
            await stranger.upload(large)
        [opened] = await stranger.uploads()
        received = opened.received_bytes
    [kept] = home.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    wire.before = nothing
    async with await visitor(link, wire, password=password) as stranger:
        facts = await stranger.link()
        assert facts is not None
        assert facts.kind == "upload"
        assert [upload.id for upload in await stranger.uploads()] == [opened.id]
        transfer = stranger.start(large)
        file = await transfer
        assert (file.name, file.sha256) == ("large.bin", content.sha256)
        assert transfer.progress.moved_bytes <= content.size - received
        for name in ("b.txt", "c.txt"):
            (tmp_path / name).write_bytes(name.encode())
        outcomes = await stranger.upload_many(
            [LocalFile.at(tmp_path / "b.txt", "deep/b.txt"), LocalFile.at(tmp_path / "c.txt")]
        )
        assert [outcome.error for outcome in outcomes] == [None, None]
        assert [file async for file in stranger.files()] == []
    assert asked == ["asked"]  # the second run has a session already
    async with await visitor(link, wire, password=password, remember=False) as stranger:
        assert await stranger.uploads() == []
    names = {file.name async for file in client.files("inbox/")}
    assert names == {"inbox/large.bin", "inbox/deep/b.txt", "inbox/c.txt"}


async def test_a_link_that_is_used_up_or_ends_says_so(client: AsyncClient, wire: Wire) -> None:
    link = await client.make_link("inbox/", "upload", max_files=1)
    async with await visitor(link, wire) as stranger:
        await stranger.upload(b"first", "a.txt")
        with pytest.raises(LinkExhausted):
            await stranger.upload(b"second", "b.txt")
        await client.revoke_link(link.id)
        with pytest.raises(LinkGone) as gone:
            await visitor(link, wire, remember=False)
        assert gone.value.fields["reason"] == "revoked"
    with pytest.raises(NotFound):
        await visitor(
            Link(**{**{name: getattr(link, name) for name in link.__struct_fields__}, "url": f"{link.url}x"}), wire
        )


@pytest.mark.parametrize("url", ["", "http://host/", "https://host/s/short", "ftp://host/s/abcdefghijklmnopqrstuv"])
async def test_what_is_no_link_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not the URL of a link"):
        await AsyncClient.from_link(url)


async def test_a_stranger_lists_and_downloads_what_is_shared(client: AsyncClient, wire: Wire, tmp_path: Path) -> None:
    contents = {"a.txt": b"alpha", "deep/b.bin": Content(300 * KIB).data, "deep/c.txt": b"gamma"}
    for name, data in contents.items():
        await client.upload(data, f"photos/{name}")
    await client.upload(b"not shared", "other.txt")
    async with await visitor(await client.make_link("photos/"), wire) as stranger:
        assert {file.name for file in [file async for file in stranger.files()]} == set(contents)
        assert [each.name async for each in stranger.level()] == ["a.txt", "deep/"]
        [file] = await stranger.named("deep/b.bin")
        assert await stranger.file(file.id) == file
        await stranger.download_folder("", tmp_path / "all")
        assert {name: (tmp_path / "all" / name).read_bytes() for name in contents} == contents
    async with await visitor(await client.make_link("photos/a.txt"), wire) as stranger:
        [file] = [file async for file in stranger.files()]
        assert await stranger.download(file, tmp_path / "alone") == tmp_path / "alone"
        assert (tmp_path / "alone").read_bytes() == b"alpha"
