"""The reports under `/admin`: figures are those of a recount, lists are whole, and what is expired is accounted for."""

import asyncio
import base64
import csv
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from sqlalchemy import delete, insert, select, update

from tests.conftest import MakeStack
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.invariants import Account, checked_accounts
from tests.support.paging import pages
from tests.support.problems import problem
from tests.support.rows import file_row
from tests.support.stack import GIB, Stack
from tests.support.visiting import send
from uploader.database import models, queries
from uploader.jobs.maintenance import Snapshot
from uploader.service import reconcile, reports
from uploader.service.ids import cursor

SHARED = Content(100 * KIB)
HERS = Content(70 * KIB, seed=1)
OPEN = Content(300 * KIB, seed=2, name="=open.bin")
HIS_OPEN = Content(500 * KIB, seed=3)
DAY_SECONDS = 86400
NOWHERE = "0" * 32


@dataclass
class Office:
    """A stack in use, and an administrator who asks."""

    stack: Stack
    root: httpx2.AsyncClient
    bob: httpx2.AsyncClient

    async def get(self, path: str, **query: Any) -> Any:
        response = await self.root.get(path, params=query)
        assert response.status_code == 200, response.text
        return response.json()

    async def csv(self, path: str, **query: Any) -> list[list[str]]:
        response = await self.root.get(path, params={"format": "csv", **query})
        assert response.headers["content-type"].startswith("text/csv")
        return list(csv.reader(io.StringIO(response.text)))

    async def account(self) -> None:
        """Account what has arrived."""
        for queue in self.stack.services.pending.flush_queues:
            await self.stack.services.flushing.flush_due(queue)

    async def rows(self, table: Any) -> list[dict[str, Any]]:
        async with self.stack.services.database.engine.connect() as connection:
            return [dict(row) for row in (await connection.execute(select(table))).mappings()]

    async def change(self, statement: Any) -> None:
        async with self.stack.services.database.engine.begin() as connection:
            await connection.execute(statement)


@asynccontextmanager
async def in_use(make_stack: MakeStack, clock: ManualClock) -> AsyncIterator[Office]:
    """alice: two files, one of them also bob's, a cancelled and an open upload. bob: two files of one content, and an
    open upload of which nothing has arrived."""
    async with make_stack(clock=clock, max_pending_bytes=1, durability="process") as stack:
        bob = await stack.client_of("bob", total_space=10**9)
        await stack.upload(HERS)
        for client, name in ((stack.client, SHARED.name), (bob, SHARED.name), (bob, "second")):
            assert (await send(client, SHARED, name)).status_code == 201
        cancelled = Content(90 * KIB, seed=9)
        await stack.open(cancelled)
        assert (await stack.client.delete(f"/files/{cancelled.md5}")).status_code == 204
        await stack.open(OPEN)
        clock.advance(60)
        await stack.open(HIS_OPEN, bob)
        await stack.put(OPEN, 0)
        made = Office(stack, await stack.client_of("root", admin=True), bob)
        await made.account()
        yield made


@pytest.fixture
async def office(make_stack: MakeStack, clock: ManualClock) -> AsyncIterator[Office]:
    async with in_use(make_stack, clock) as made:
        yield made


@pytest.fixture
async def office_on(make_stack_on: MakeStack, clock: ManualClock) -> AsyncIterator[Office]:
    """On each kind of database: where it sums, sorts, or decides who is first."""
    async with in_use(make_stack_on, clock) as made:
        yield made


async def recounted(office: Office) -> dict[str, int]:
    """The totals, from all rows, by their definitions."""
    users, files = await office.rows(models.user_info), await office.rows(models.file)
    opened = [row for row in await office.rows(models.upload) if row["state"] == "OPEN"]
    contents = {row["sha256"]: row["size"] for row in files}
    return {
        "users": len(users),
        "files": len(files),
        "blobs": len(contents),
        "open_uploads": len(opened),
        "total_space": sum(row["total_space"] for row in users),
        "use_space_finished": sum(row["size"] for row in files),
        "use_space_unfinished": sum(row["flushed_bytes"] for row in opened),
        "reserved": sum(row["size"] for row in opened),
        "logical_bytes": sum(row["size"] for row in files),
        "physical_bytes": sum(contents.values()),
        "saved_bytes": sum(row["size"] for row in files) - sum(contents.values()),
    }


async def test_the_summary_equals_a_recount(office_on: Office, clock: ManualClock) -> None:
    expected = await recounted(office_on)
    assert (expected["files"], expected["blobs"]) == (4, 2)
    assert (expected["saved_bytes"], expected["use_space_unfinished"]) == (2 * SHARED.size, 64 * KIB)
    summary = await office_on.get("/admin/usage/summary")
    assert {name: summary[name] for name in expected} == expected
    month = f"{clock.now():%Y-%m}"
    temp = {"open_uploads": 2, "quota_bytes": expected["reserved"], "disk_bytes": 64 * KIB, "month": month}
    assert summary["temp"] == [temp]
    disk = summary["disk"]
    promised = expected["reserved"] - expected["use_space_unfinished"]
    assert (disk["floor_bytes"], disk["promised_bytes"]) == (0, promised)
    assert disk["available_bytes"] == disk["free_bytes"] - promised > 0
    assert disk["total_bytes"] > disk["free_bytes"]
    nothing = dict.fromkeys(
        ("since", "use_space_finished", "physical_bytes", "physical_bytes_per_day", "days_until_full")
    )
    assert summary["growth"] == [{"days": days, **nothing} for days in (7, 30, 365)]
    assert summary["as_of"] == clock.now().isoformat().replace("+00:00", "Z")


async def test_the_summary_tells_old_months_and_quotas_without_end(office_on: Office) -> None:
    early = {"created_at": datetime(2025, 12, 31, 23, 59, tzinfo=UTC), "flushed_bytes": 5}
    await office_on.change(update(models.upload).where(models.upload.c.user_id == "bob").values(**early))
    for user_id in ("bob", "carol"):
        response = await office_on.root.put(f"/admin/users/{user_id}", json={"total_space": 2**63 - 1})
        assert response.status_code == 200
    summary = await office_on.get("/admin/usage/summary")
    assert summary["temp"][0] == {"month": "2025-12", "open_uploads": 1, "quota_bytes": HIS_OPEN.size, "disk_bytes": 5}
    assert [(row["open_uploads"], row["quota_bytes"]) for row in summary["temp"][1:]] == [(1, OPEN.size)]
    assert summary["total_space"] == 2**63 - 1
    await office_on.stack.services.overview.take_day()
    assert (await office_on.get("/admin/usage/history"))["days"][0]["total_space"] == 2**63 - 1
    for table in (models.file, models.upload, models.blob):
        await office_on.change(delete(table))
    summary = await office_on.get("/admin/usage/summary")
    assert (summary["users"], summary["files"], summary["saved_bytes"], summary["temp"]) == (4, 0, 0, [])


async def test_each_day_has_one_snapshot_however_many_take_it(office_on: Office, clock: ManualClock) -> None:
    overview = office_on.stack.services.overview
    await asyncio.gather(*(overview.take_day() for _ in range(5)))
    (first,) = (await office_on.get("/admin/usage/history"))["days"]
    expected = await recounted(office_on)
    assert {name: first[name] for name in expected} == expected
    assert (first["day"], first["free_disk_bytes"] > 0) == (str(clock.now().date()), True)
    await office_on.stack.upload(Content(80 * KIB, seed=4))
    await overview.take_day()
    assert (await office_on.get("/admin/usage/history"))["days"] == [first]


async def test_the_job_takes_every_day_and_invents_none(office: Office, clock: ManualClock) -> None:
    job = Snapshot(office.stack.services.overview, clock)
    begin = clock.now().date()
    for passed_days in (0, 0, 1, 4):
        clock.advance(passed_days * DAY_SECONDS)
        assert 0 < await job.run_once() <= 60
    days = [str(begin + timedelta(days=passed)) for passed in (0, 1, 5)]
    for query, expected in (({}, days), ({"days": 5}, days[1:]), ({"days": 1}, days[2:])):
        assert [day["day"] for day in (await office.get("/admin/usage/history", **query))["days"]] == expected


async def test_growth_is_told_since_the_newest_snapshot_that_is_old_enough(
    office_on: Office, clock: ManualClock
) -> None:
    office, overview = office_on, office_on.stack.services.overview
    await overview.take_day()
    taken_at = clock.now()
    clock.advance(10 * DAY_SECONDS)
    await overview.take_day()
    await office.stack.upload(Content(80 * KIB, seed=4))
    await office.stack.upload(SHARED, name="third")
    summary = await office.get("/admin/usage/summary")
    week, month, _ = summary["growth"]
    added, per_day = 80 * KIB, 80 * KIB / 10
    assert month["since"] is None
    assert week["since"] == taken_at.isoformat().replace("+00:00", "Z")
    assert (week["use_space_finished"], week["physical_bytes"]) == (added + SHARED.size, added)
    assert week["physical_bytes_per_day"] == pytest.approx(per_day)
    assert week["days_until_full"] == pytest.approx(summary["disk"]["available_bytes"] / per_day)


async def test_open_uploads_are_listed_with_what_they_give_back(office: Office, clock: ManualClock) -> None:
    listed = await office.get("/admin/uploads")
    assert [list(upload) for upload in listed["uploads"]] == [
        ["upload_id", "user_id", "name", "created_at", "updated_at", "quota_bytes", "disk_bytes"]
    ] * 2
    figures = {upload["user_id"]: (upload["quota_bytes"], upload["disk_bytes"]) for upload in listed["uploads"]}
    assert figures == {"alice": (OPEN.size, 64 * KIB), "bob": (HIS_OPEN.size, 0)}
    total = {"open_uploads": 2, "quota_bytes": OPEN.size + HIS_OPEN.size, "disk_bytes": 64 * KIB}
    assert (listed["total"], listed["next"]) == (total, None)
    clock.advance(100)
    await office.stack.put(OPEN, 1)
    await office.account()
    assert (await office.get("/admin/uploads", idle_for=101))["uploads"] == []
    idle = await office.get("/admin/uploads", idle_for=100)
    assert [upload["user_id"] for upload in idle["uploads"]] == ["bob"]
    assert idle["total"] == {"open_uploads": 1, "quota_bytes": HIS_OPEN.size, "disk_bytes": 0}


ORDERS: list[tuple[dict[str, str], list[str]]] = [
    ({}, ["his", "hers", "third"]),
    ({"order": "desc"}, ["hers", "third", "his"]),
    ({"sort": "quota_bytes"}, ["his", "hers", "third"]),
    ({"sort": "quota_bytes", "order": "asc"}, ["third", "hers", "his"]),
    ({"sort": "disk_bytes"}, ["hers", "his", "third"]),
    ({"sort": "disk_bytes", "order": "asc"}, ["his", "third", "hers"]),
    ({"user_id": "alice"}, ["hers", "third"]),
    ({"user_id": "nobody"}, []),
    ({"idle_for": "60"}, ["his"]),
    ({"idle_for": "61"}, []),
]


async def test_open_uploads_are_sorted_and_come_in_pages(
    office_on: Office, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "_BATCH", 1)
    clock.advance(60)
    await office_on.stack.put(OPEN, 1)
    await office_on.account()
    third = (await office_on.stack.open(Content(100 * KIB, seed=5))).json()["upload"]["id"]
    words = {third: "third"}
    for upload in (await office_on.get("/admin/uploads"))["uploads"]:
        words.setdefault(upload["upload_id"], "hers" if upload["user_id"] == "alice" else "his")
    for query, expected in ORDERS:
        whole = await office_on.get("/admin/uploads", **query)
        assert [words[upload["upload_id"]] for upload in whole["uploads"]] == expected, query
        sums = {name: sum(upload[name] for upload in whole["uploads"]) for name in ("quota_bytes", "disk_bytes")}
        assert whole["total"] == {"open_uploads": len(expected), **sums}, query
        paged = await pages(office_on.root, "/admin/uploads", limit=1, **query)
        assert [page["total"] for page in paged] == [whole["total"]] * len(paged)
        assert [upload for page in paged for upload in page["uploads"]] == whole["uploads"], query
        head, *lines = await office_on.csv("/admin/uploads", **query)
        assert [words[line[head.index("upload_id")]] for line in lines] == expected, query


async def test_a_spreadsheet_runs_nothing_that_a_user_has_written(office: Office) -> None:
    await office.root.put("/admin/users/=1+1", json={"total_space": 1})
    assert "'=1+1" in {row[0] for row in await office.csv("/admin/usage")}
    assert (await office.csv("/admin/uploads", user_id="alice"))[1][2] == "'=open.bin"


async def test_what_is_expired_gives_back_all_it_held_and_only_what_is_open_is_expired(
    office: Office, clock: ManualClock
) -> None:
    before = await checked_accounts(office.stack.services.database)
    assert before["alice"].unfinished == 64 * KIB
    (upload,) = (await office.get("/admin/uploads", user_id="alice"))["uploads"]
    path = f"/admin/uploads/{upload['upload_id']}"
    problem(await office.root.delete(path, params={"idle_for": 3600}), 409, "upload-active")
    assert await checked_accounts(office.stack.services.database) == before
    clock.advance(7200)
    assert (await office.root.delete(path, params={"idle_for": 3600})).status_code == 204
    after = await checked_accounts(office.stack.services.database)
    assert after == before | {"alice": Account(before["alice"].finished, 0, 0)}
    assert [found for found in office.stack.bytes_on_disk() if upload["upload_id"] in str(found)] == []
    assert problem(await office.stack.put(OPEN, 1), 410, "upload-gone")["reason"] == "expired"
    assert problem(await office.root.delete(path), 410, "upload-gone")["reason"] == "expired"
    assert await checked_accounts(office.stack.services.database) == after
    again = (await office.stack.open(OPEN)).json()["upload"]["id"]
    await office.stack.put(OPEN, 0)
    assert (await office.root.delete(f"/admin/uploads/{again}")).status_code == 204
    assert (await checked_accounts(office.stack.services.database)) == after
    (done,) = [row for row in await office.rows(models.upload) if row["state"] == "DONE" and row["size"] == HERS.size]
    for upload_id in (NOWHERE, done["id"], "x"):
        problem(await office.root.delete(f"/admin/uploads/{upload_id}"), 404, "upload-not-found")
    assert len((await office.get("/admin/users/alice/files"))["files"]) == 2


async def test_one_user_is_looked_at_closely_if_there_is_such_a_user(office: Office) -> None:
    alice = await office.get("/admin/users/alice")
    as_of = alice.pop("as_of")
    assert alice == {
        "user_id": "alice",
        "total_space": 10 * GIB,
        "use_space_finished": SHARED.size + HERS.size,
        "use_space_unfinished": 64 * KIB,
        "reserved": OPEN.size,
        "files": 2,
        "open_uploads": 1,
        "available": 10 * GIB - SHARED.size - HERS.size - OPEN.size,
    }
    hers = (await office.stack.client.get("/me/files")).json()
    for file in hers["files"]:
        del file["md5"], file["sha256"]  # by which an administrator could ask for the content
    assert await office.get("/admin/users/alice/files") == hers | {"as_of": as_of}
    page = await office.get("/admin/users/alice/files", limit=1)
    assert (page["files"], page["next"] is None) == (hers["files"][:1], False)
    rest = await office.get("/admin/users/alice/files", after=page["next"])
    assert (rest["files"], rest["next"]) == (hers["files"][1:], None)
    for path in ("/admin/users/nobody", "/admin/users/nobody/files"):
        problem(await office.root.get(path), 404, "not-found")
    problem(await office.root.post("/admin/usage/recount", json={"user_id": "nobody"}), 404, "not-found")


async def test_a_recount_finds_what_drifted_and_changes_nothing(
    office_on: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "_SLICE", 1)
    found = (await office_on.root.post("/admin/usage/recount")).json()
    assert (found["checked"], found["drifts"], found["notes"]) == ({"users": 3, "links": 0, "blobs": 2}, [], [])
    users = models.user_info.c
    await office_on.change(update(models.user_info).where(users.user_id == "bob").values(reserved=1, total_space=2))
    await office_on.change(update(models.blob).where(models.blob.c.sha256 == SHARED.sha256).values(refs=7))
    # Rows of users who have none themselves: before, between and after those who do.
    orphans = [file_row(user_id, size=5, name=user_id) for user_id in ("a", "b", "zoe")]
    for orphan in orphans:
        await office_on.change(
            insert(models.file).values(**{name: getattr(orphan, name) for name in queries.FILE_COLUMNS})
        )
    rows = [await office_on.rows(table) for table in (models.user_info, models.file, models.blob)]
    found = (await office_on.root.post("/admin/usage/recount", json={})).json()
    drifts = [(each["kind"], each["subject"], each["expected"], each["actual"]) for each in found["drifts"]]
    assert drifts == [
        ("use_space_finished", "a", 5, None),
        ("files", "a", 1, None),
        ("use_space_finished", "b", 5, None),
        ("files", "b", 1, None),
        ("reserved", "bob", HIS_OPEN.size, 1),
        ("use_space_finished", "zoe", 5, None),
        ("files", "zoe", 1, None),
        *sorted([("refs", SHARED.sha256, 3, 7), ("refs", orphans[0].sha256, 3, None)], key=lambda drift: drift[1]),
    ]
    assert [(note["kind"], note["subject"]) for note in found["notes"]] == [("over-total-space", "bob")]
    for order, expected in (("asc", ["root", "alice", "bob"]), ("desc", ["alice", "bob", "root"])):
        paged = await pages(office_on.root, "/admin/usage", limit=1, sort="files", order=order)
        assert [user["user_id"] for page in paged for user in page["users"]] == expected
    one = (await office_on.root.post("/admin/usage/recount", json={"user_id": "bob"})).json()
    assert (one["checked"], [each["kind"] for each in one["drifts"]]) == ({"users": 1}, ["reserved"])
    assert [await office_on.rows(table) for table in (models.user_info, models.file, models.blob)] == rows


USERS = {
    "alice": (10 * GIB, SHARED.size + HERS.size, 64 * KIB, OPEN.size, 2, 1),
    "bob": (10**9, 2 * SHARED.size, 0, HIS_OPEN.size, 2, 1),
    "root": (10 * GIB, 0, 0, 0, 0, 0),
}
USER_COLUMNS = ["user_id", "total_space", "use_space_finished", "use_space_unfinished", "reserved"]
USER_COLUMNS += ["files", "open_uploads"]
USER_ORDERS: list[tuple[dict[str, str], list[str]]] = [
    ({}, ["bob", "alice", "root"]),
    ({"sort": "user_id"}, ["alice", "bob", "root"]),
    ({"sort": "user_id", "order": "desc"}, ["root", "bob", "alice"]),
    ({"sort": "total_space", "order": "asc"}, ["bob", "alice", "root"]),
    ({"sort": "use_space_finished", "order": "asc"}, ["root", "alice", "bob"]),
    ({"sort": "use_space_unfinished"}, ["alice", "bob", "root"]),
    ({"sort": "reserved"}, ["bob", "alice", "root"]),
    ({"sort": "files"}, ["alice", "bob", "root"]),
    ({"sort": "files", "order": "asc"}, ["root", "alice", "bob"]),
    ({"sort": "open_uploads"}, ["alice", "bob", "root"]),
    ({"q": "o"}, ["bob", "root"]),
    ({"q": "B"}, []),
    ({"q": "%"}, []),
]


async def test_every_user_is_reported_with_all_figures_sorted_and_searched(
    office_on: Office, clock: ManualClock
) -> None:
    for query, expected in USER_ORDERS:
        whole = await office_on.get("/admin/usage", **query)
        assert (whole["as_of"], whole["next"]) == (clock.now().isoformat().replace("+00:00", "Z"), None)
        rows = [(user_id, *USERS[user_id]) for user_id in expected]
        assert [list(user) for user in whole["users"]] == [USER_COLUMNS] * len(expected)
        assert [tuple(user.values()) for user in whole["users"]] == rows, query
        paged = await pages(office_on.root, "/admin/usage", limit="1", **query)
        assert [user for page in paged for user in page["users"]] == whole["users"]
        assert max(len(page["users"]) for page in paged) <= 1
    lines = [[user_id, *map(str, figures)] for user_id, figures in USERS.items()]
    assert await office_on.csv("/admin/usage", limit=1, sort="user_id") == [USER_COLUMNS, *lines]
    csv_by_name = {"Accept": "text/csv"}
    for query, kind in (({}, "text/csv; charset=utf-8"), ({"format": "json"}, "application/json")):
        response = await office_on.root.get("/admin/usage", params=query, headers=csv_by_name)
        assert response.headers["content-type"] == kind


async def test_a_quota_is_set_and_the_user_made_if_need_be(office_on: Office) -> None:
    nothing = {"use_space_finished": 0, "use_space_unfinished": 0, "reserved": 0}
    for user_id in ("new", "new", "a@b.example", "ünï", "x" * 255):
        response = await office_on.root.put(f"/admin/users/{user_id}", json={"total_space": 0})
        assert response.status_code == 200
        assert response.json() == {"user_id": user_id, "total_space": 0, **nothing}
    lowered = (await office_on.root.put("/admin/users/alice", json={"total_space": 1})).json()
    assert (lowered["total_space"], lowered["use_space_finished"]) == (1, SHARED.size + HERS.size)
    assert (await office_on.stack.client.get("/me/usage")).json()["total_space"] == 1
    largest = await office_on.root.put("/admin/users/alice", json={"total_space": 2**63 - 1})
    assert largest.json()["total_space"] == 2**63 - 1
    assert (await office_on.stack.open(Content(1000, seed=1))).status_code == 201


def spelt(*parts: Any) -> str:
    """As a cursor is."""
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


MALFORMED = [
    *(("/admin/usage", "after", spelt("use_space_finished", figure, "a")) for figure in ("1", 2**63, -(2**70))),
    *(("/admin/usage", "after", spelt(*parts)) for parts in (("files", 1, "a"), ("use_space_finished", 1))),
    *(("/admin/usage/history", "days", value) for value in ("0", "3661", "1.5", "", "a")),
    *(("/admin/uploads", "idle_for", value) for value in ("-1", "3153600001", "1e3")),
    *(("/admin/uploads", "sort", value) for value in ("name", "", "size")),
    *(("/admin/uploads", name, "x") for name in ("order", "format", "limit", "after")),
    *(("/admin/uploads", "after", cursor("updated_at", value, "a")) for value in (1, "a", "2030-01-01T00:00:00")),
    *(("/admin/uploads", "after", cursor(sort, "0001-01-01T00:00:00+14:00", "a")) for sort in ("updated_at", "x")),
    *(("/admin/uploads", "user_id", value) for value in ("a b", "x" * 256)),
    *(("/admin/users/alice/files", name, "x") for name in ("limit", "after")),
]


async def test_a_malformed_question_is_refused(stack: Stack) -> None:
    root = await stack.client_of("root", admin=True)
    for path, name, value in MALFORMED:
        body = problem(await root.get(path, params={name: value}), 422, "invalid-request")
        assert [error["field"] for error in body["errors"]] == [name], (path, value)
    for content in ('{"user_id": 1}', '{"user_id": ""}', '{"user_id": "a b"}', '{"who": "a"}', "[]", "x"):
        problem(await root.post("/admin/usage/recount", content=content), 422, "invalid-request")
    body = problem(await root.delete(f"/admin/uploads/{NOWHERE}?idle_for=x"), 422, "invalid-request")
    assert [error["field"] for error in body["errors"]] == ["idle_for"]
    for path in ("/admin/users/a%20b", "/admin/users/a%20b/files"):
        problem(await root.get(path), 422, "invalid-request")


async def test_all_of_it_is_for_administrators_alone(stack: Stack) -> None:
    paths = (await stack.anonymous().get("/openapi.json")).json()["paths"]
    operations = [
        (method, path)
        for path, item in paths.items()
        for method in item
        if path.startswith("/admin/") and path != "/admin/"  # the page itself, which holds nothing
    ]
    assert len(operations) >= 9
    for method, path in operations:
        named = path.replace("{user_id}", "alice").replace("{upload_id}", NOWHERE)
        problem(await stack.client.request(method, named, json={"total_space": 1}), 403, "forbidden")
        problem(await stack.anonymous().request(method, named, json={"total_space": 1}), 401, "unauthenticated")
