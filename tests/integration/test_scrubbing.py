"""`Scrubbing` at the word of an administrator: every blob is read again, what rotted is reported."""

import random

import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.layout import blob_path
from tests.support.rot import flip_bit
from tests.support.stack import Stack
from uploader.service.heal import BlobProblem, Damage
from uploader.storage.base import Digests, Found, Pace, Stopping

CONTENTS = [Content(3 * 64 * KIB - 100, seed=seed, name=f"{seed}.bin") for seed in range(4)]


async def _upload_all(stack: Stack) -> dict[str, str]:
    files = {}
    for content in CONTENTS:
        response = await stack.upload(content)
        assert response.status_code == 201
        files[content.sha256] = response.json()["file"]["id"]
    return files


async def _scrub(stack: Stack, *, restart: bool = False) -> list[Damage]:
    return [damage async for damage in stack.services.scrubbing.scrub(lambda _: None, restart=restart)]


async def test_every_flipped_bit_is_reported_and_nothing_is_touched(stack: Stack) -> None:
    files = await _upload_all(stack)
    content = CONTENTS[0]
    path = blob_path(stack.data, content.sha256)
    everything = stack.bytes_on_disk()
    for bit in [0, content.size * 8 - 1, *random.Random(1).sample(range(content.size * 8), 6)]:
        flip_bit(path, bit)
        (damage,) = await _scrub(stack)
        assert (damage.sha256, damage.problem, damage.size) == (content.sha256, BlobProblem.ALTERED, content.size)
        assert [(file.user_id, file.id) for file in damage.files] == [("alice", files[content.sha256])]
        flip_bit(path, bit)
        assert await _scrub(stack) == []
    assert stack.bytes_on_disk() == everything
    assert path.read_bytes() == content.data


async def test_a_blob_that_is_deleted_before_or_while_it_is_read_is_not_reported(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = await _upload_all(stack)
    contents = sorted(CONTENTS, key=lambda content: content.sha256)
    for content in contents[:2]:
        flip_bit(blob_path(stack.data, content.sha256), 77)
    assert (await stack.client.delete(f"/me/files/{files[contents[0].sha256]}")).status_code == 204
    storage = stack.services.storage
    before = storage.hash_blob

    async def delete_in_between(found: Found, pace: Pace | None, *, with_md5: bool) -> Digests | None:
        digest = await before(found, pace, with_md5=with_md5)
        if found.name == contents[1].sha256:
            await stack.client.delete(f"/me/files/{files[found.name]}")
        return digest

    monkeypatch.setattr(storage, "hash_blob", delete_in_between)
    assert await _scrub(stack) == []


async def test_an_interrupted_pass_goes_on_where_it_was_and_keeps_count_of_the_damage(make_stack_on: MakeStack) -> None:
    async with make_stack_on() as stack:
        await _upload_all(stack)
        assert await _scrub(stack) == []
        progress = stack.services.scrubbing.progress
        total = sum(content.size for content in CONTENTS)
        assert (progress.blobs, progress.bytes, progress.damaged) == (len(CONTENTS), total, 0)
        contents = sorted(CONTENTS, key=lambda content: content.sha256)
        for content in (contents[0], contents[2]):
            flip_bit(blob_path(stack.data, content.sha256), 1000)
        scrub = stack.services.scrubbing.scrub(lambda _: None)
        assert [(await anext(scrub)).sha256, (await anext(scrub)).sha256] == [contents[0].sha256, contents[2].sha256]
        await scrub.aclose()  # what was reported last may not be remembered: rather twice than never

        assert [damage.sha256 for damage in await _scrub(stack)] == [contents[2].sha256]
        assert stack.services.scrubbing.progress.damaged == 2
        # The pass is over: the next begins anew. So does one that is told to.
        for restart in (False, True):
            assert [damage.sha256 for damage in await _scrub(stack, restart=restart)] == [
                contents[0].sha256,
                contents[2].sha256,
            ]


async def test_stopping_ends_a_scrub_in_the_middle_of_a_blob(stack: Stack) -> None:
    await _upload_all(stack)

    def stop(_read_bytes: int) -> None:
        stack.services.storage.stop()

    with pytest.raises(Stopping):
        async for _ in stack.services.scrubbing.scrub(stop):
            raise AssertionError("nothing is damaged")
