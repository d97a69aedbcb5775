"""Whoever listens to a bell misses no ring."""

import asyncio

from uploader.runtime.bell import Bell


async def test_all_who_listen_wake_up_and_who_was_awake_does_not_sleep() -> None:
    bell, loop = Bell(), asyncio.get_running_loop()
    rings, far = bell.rings, loop.time() + 3600
    asleep = [asyncio.ensure_future(bell.listen(rings, far)) for _ in range(3)]
    await asyncio.sleep(0)
    asleep[0].cancel()
    bell.ring()
    await asyncio.wait(asleep)
    assert [each.cancelled() for each in asleep] == [True, False, False]
    await bell.listen(rings, far)  # it rang before this one slept, though the others have heard it
    await asyncio.wait_for(bell.listen(bell.rings, loop.time() + 0.01), 60)
    assert not bell._asleep
