"""A user who opens uploads and never finishes them: held to the quota and to the limits, and seen by administrators."""

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.problems import problem
from tests.support.waiting import eventually

LIMIT = 20
SIZE = 128 * KIB


async def test_who_never_finishes_is_held_to_the_quota_and_the_limits_and_seen(make_stack: MakeStack) -> None:
    async with make_stack(max_open_uploads=LIMIT, quiet_interval_seconds=0.1, jobs=True) as stack:
        hoarder = await stack.client_of("hoarder", total_space=(LIMIT + 1) * SIZE)
        contents = [Content(SIZE, seed=number) for number in range(LIMIT + 1)]
        for content in contents[:LIMIT]:
            assert (await stack.open(content, hoarder)).status_code == 201
            assert (await stack.put(content, 0, hoarder)).status_code == 200

        refused = await stack.open(contents[LIMIT], hoarder)
        assert problem(refused, 429, "too-many-uploads")["limit"] == LIMIT
        by_id = await hoarder.post("/uploads", json={"name": "a", "size": 1})
        problem(by_id, 429, "too-many-uploads")
        await hoarder.delete(f"/files/{contents[0].md5}")
        larger = await hoarder.post("/uploads", json={"name": "a", "size": 2 * SIZE + 1})
        problem(larger, 413, "quota-exceeded")

        admin = await stack.client_of("root", admin=True)

        async def is_seen() -> bool:
            report = await admin.get("/admin/usage", params={"sort": "open_uploads"})
            first = report.json()["users"][0]
            assert (first["user_id"], first["open_uploads"], first["files"]) == ("hoarder", LIMIT - 1, 0)
            assert (first["reserved"], first["use_space_finished"]) == ((LIMIT - 1) * SIZE, 0)
            return bool(first["use_space_unfinished"] == (LIMIT - 1) * 64 * KIB)

        await eventually(is_seen)
        usage = (await hoarder.get("/me/usage")).json()
        assert usage["available"] == 2 * SIZE
        assert (await stack.open(Content(SIZE, seed=100))).status_code == 201  # nobody else is held
