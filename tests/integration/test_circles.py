"""What a request made goes with it: nothing waits for the garbage collector, which a server process seldom asks."""

import gc
import weakref
from typing import Any

from starlette.types import Message

from tests.support.content import KIB, Content
from tests.support.stack import Stack

CONTENT = Content(100 * KIB)


class Connection:
    """As a server's: what it gives to the application refers to it, and it refers to the scope."""

    def __init__(self, authorization: str) -> None:
        self.status = 0
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": "PUT",
            "path": f"/files/{CONTENT.md5}/chunks/0",
            "query_string": b"",
            "headers": [
                (b"authorization", authorization.encode()),
                (b"content-length", b"%d" % len(CONTENT.chunk(0))),
            ],
        }

    async def receive(self) -> Message:
        return {"type": "http.request", "body": CONTENT.chunk(0), "more_body": False}

    async def send(self, message: Message) -> None:
        self.status = message.get("status", self.status)


async def test_a_request_leaves_nothing_in_circles(stack: Stack) -> None:
    await stack.open(CONTENT)
    gc.collect()
    gc.disable()
    try:
        connection = Connection(stack.client.headers["authorization"])
        await stack.app(connection.scope, connection.receive, connection.send)
        assert connection.status == 200
        end = weakref.ref(connection)
        del connection
        assert end() is None
    finally:
        gc.enable()
