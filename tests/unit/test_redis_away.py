"""Every way in which the client of Redis says that the server is away is the same to the rest of the server."""

from typing import NoReturn

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from uploader.accounting.connection import connect
from uploader.accounting.pending import Delays, Pending
from uploader.errors import Unavailable

DELAYS = Delays(quiet_seconds=5, max_delay_seconds=60, max_pending_bytes=1, lease_seconds=30)


@pytest.mark.parametrize(
    "error",
    [RedisConnectionError("reset"), ConnectionResetError(), TimeoutError(), RuntimeError("the handler is closed")],
    ids=repr,
)
async def test_a_connection_that_is_lost_in_the_middle_of_a_script_is_unavailable(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def evalsha(*_arguments: object) -> NoReturn:
        raise error

    redis = connect("redis://127.0.0.1:9/0")
    monkeypatch.setattr(redis, "evalsha", evalsha)
    with pytest.raises(Unavailable):
        await Pending(redis, shards=1, delays=DELAYS).read("upload")
    await redis.aclose()
