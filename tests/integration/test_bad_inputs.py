"""Every bad input gets its answer and has no effect."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.integration.bad_inputs import Bad, bad_inputs
from tests.support.content import KIB, Content
from tests.support.sockets import Answer, Server, serving_stack
from tests.support.stack import Stack
from uploader.service.reports import Order

INPUTS = bad_inputs()
UPLOAD = Content(100 * KIB, name="open.bin")
FILE = Content(100 * KIB, seed=1, name="file.bin")
AT_ONCE = 16


def test_there_are_more_than_a_thousand_of_them_and_none_twice() -> None:
    rows = [row for rows in INPUTS.values() for row in rows]
    assert len(rows) > 1000
    assert [str(row) for row, count in Counter(rows).items() if count > 1] == []


@pytest.mark.parametrize("kind", INPUTS)
async def test_bad_inputs_get_their_answers_and_change_nothing(make_stack: MakeStack, kind: str) -> None:
    async with serving_stack(make_stack) as server:
        stack = server.stack
        places = await _places(stack)
        before = await _state(stack)
        tokens = {
            "alice": stack.client.headers["authorization"],
            "root": (await stack.client_of("root", admin=True)).headers["authorization"],
        }
        rows = INPUTS[kind]
        faults: list[str] = []
        for begin in range(0, len(rows), AT_ONCE):
            batch = rows[begin : begin + AT_ONCE]
            answers = await asyncio.gather(*(_ask(server, row, places, tokens) for row in batch))
            faults += [
                f"{row}\n    is answered {fault}"
                for row, answer in zip(batch, answers, strict=True)
                if (fault := _fault(row, answer)) is not None
            ]
        assert not faults, f"{len(faults)} of {len(rows)}:\n" + "\n".join(faults)
        assert await _state(stack) == before


async def _places(stack: Stack) -> dict[str, str]:
    upload = (await stack.open(UPLOAD)).json()["upload"]
    file = (await stack.upload(FILE)).json()["file"]
    return {"{md5}": UPLOAD.md5, "{id}": upload["id"], "{file}": file["id"]}


async def _state(stack: Stack) -> dict[str, Any]:
    """All that a bad input might have changed."""
    uploads = (await stack.client.get("/uploads")).json()["uploads"]
    files = (await stack.client.get("/me/files")).json()["files"]
    users = [
        user
        async for page in stack.services.reports.all_usage(Order(sort="user_id", descending=False), containing=None)
        for user in page
        if user.user_id != "root"
    ]
    return {"uploads": uploads, "files": files, "users": users, "disk": stack.bytes_on_disk()}


async def _ask(server: Server, row: Bad, places: dict[str, str], tokens: dict[str, str]) -> Answer | None:
    """None: the connection was closed without an answer."""
    target = row.target
    for place, value in places.items():
        target = target.replace(place, value)
    if row.raw is not None:
        content = row.raw.replace(b"{md5}", places["{md5}"].encode()).replace(b"{token}", tokens["alice"].encode())
    else:
        lines = [f"{row.method} {target} HTTP/1.1", "Host: test", *row.headers]
        lines += [f"Authorization: {tokens[row.user]}"] if row.user else []
        lines += [f"Content-Length: {len(row.body)}"] if row.body or row.method in ("PUT", "POST") else []
        content = "\r\n".join([*lines, "", ""]).encode("latin-1") + row.body
    async with server.connection() as connection:
        await connection.send(content)
        try:
            return await connection.answer()
        except (asyncio.IncompleteReadError, ConnectionError):
            return None


def _fault(row: Bad, answer: Answer | None) -> str | None:
    """What is wrong with the answer to a row."""
    if answer is None:
        return "by a closed connection"
    kind = answer.headers.get("content-type")
    if kind != "application/problem+json":
        return f"{answer.status} as {kind}: {answer.body[:200]!r}"
    body = json.loads(answer.body)
    if (answer.status, body["status"], body["code"]) != (row.status, row.status, row.code):
        return f"{answer.status} {body['code']}: {body['detail']}"
    blamed = [error["field"] for error in body.get("errors", [])]
    if row.names is not None and blamed != [row.names]:
        return f"with the blame on {blamed} instead of {row.names}"
    if body["request_id"] != answer.headers.get("x-request-id"):
        return "without its request id"
    return None if answer.headers.get("x-content-type-options") == "nosniff" else "without security headers"
