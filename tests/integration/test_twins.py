"""Two different contents with one MD5 are two blobs, and nobody ever gets the other's bytes."""

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.stack import Stack
from tests.support.twins import twins

PAIR = twins()


async def _bytes_of(client: httpx2.AsyncClient, file_id: str) -> bytes:
    response = await client.get(f"/me/files/{file_id}/content")
    assert response.status_code == 200
    return response.content


async def _blobs(stack: Stack) -> list[str]:
    return sorted(path.name for path in (stack.data / "blobs").rglob("*") if path.is_file())


def test_the_twins_collide() -> None:
    one, other = PAIR
    assert (one.md5, one.size) == (other.md5, other.size)
    assert one.sha256 != other.sha256


@pytest.mark.places
# Under `trust` MD5 and size are all that is asked for, so there the SHA-256 has to be told.
@pytest.mark.parametrize(
    ("instant", "told"), [("off", False), ("own", False), ("proof", False), ("proof", True), ("trust", True)]
)
@pytest.mark.parametrize("first", [0, 1])
async def test_twins_of_two_users_are_two_blobs_whichever_came_first(
    make_stack: MakeStack, instant: str, told: bool, first: int
) -> None:
    mine, theirs = PAIR[first], PAIR[1 - first]
    async with make_stack(instant=instant) as stack:
        bob = await stack.client_of("bob")
        files = {}
        for client, content in ((stack.client, mine), (bob, theirs)):
            claims = {"sha256": content.sha256} if told else {}
            response = await stack.upload(content, client, **claims)
            assert response.status_code == 201
            files[client] = response.json()["file"]
            assert files[client]["instant"] is False
            assert files[client]["sha256"] == content.sha256
        assert await _blobs(stack) == sorted([mine.sha256, theirs.sha256])
        assert await _bytes_of(stack.client, files[stack.client]["id"]) == mine.data
        assert await _bytes_of(bob, files[bob]["id"]) == theirs.data

        # One goes; the other stays.
        assert (await stack.client.delete(f"/me/files/{files[stack.client]['id']}")).status_code == 204
        assert await _blobs(stack) == [theirs.sha256]
        assert await _bytes_of(bob, files[bob]["id"]) == theirs.data


async def test_twins_that_are_uploaded_at_the_same_time_stay_apart(stack: Stack) -> None:
    one, other = PAIR
    bob = await stack.client_of("bob")
    for client, content in ((stack.client, one), (bob, other)):
        assert (await stack.open(content, client)).status_code == 201
    for number in range(one.chunk_count):
        mine = await stack.put(one, number)
        theirs = await stack.put(other, number, bob)
    assert await _bytes_of(stack.client, mine.json()["file"]["id"]) == one.data
    assert await _bytes_of(bob, theirs.json()["file"]["id"]) == other.data


async def test_one_user_may_have_both_twins_if_their_sha256_is_told(stack: Stack) -> None:
    ids = {}
    for content in PAIR:
        response = await stack.upload(content, sha256=content.sha256)
        assert response.status_code == 201
        ids[content.sha256] = response.json()["file"]["id"]
    for content in PAIR:
        assert await _bytes_of(stack.client, ids[content.sha256]) == content.data
        instant = await stack.open(content, name="second name.bin", sha256=content.sha256)
        assert (instant.status_code, instant.json()["file"]["sha256"]) == (201, content.sha256)


async def test_a_twin_under_the_others_sha256_is_refused_and_given_back(stack: Stack) -> None:
    one, other = PAIR
    response = await stack.upload(other, sha256=one.sha256)
    assert (response.status_code, response.json()["code"]) == (422, "sha256-mismatch")
    assert await stack.usage("alice") == {"finished": 0, "unfinished": 0, "reserved": 0}
    assert stack.bytes_on_disk() == []
