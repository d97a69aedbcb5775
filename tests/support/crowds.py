"""Callers of whom some give up in the middle, which must not change what the others get."""

import asyncio
import random
from collections.abc import Awaitable, Callable

_CALLS_EACH = 10


async def many_of_whom_some_give_up(
    call: Callable[[int], Awaitable[None]], first: int, *, callers: int, giving_up: int
) -> None:
    """Each makes ten calls one after the other, with numbers from `first` on that nobody else has; `call` fails where it
    gets what is another's."""
    chosen = random.Random(first)

    async def make_calls(begin: int) -> None:
        for number in range(begin, begin + _CALLS_EACH):
            await call(number)

    calls = [asyncio.create_task(make_calls(first + _CALLS_EACH * number)) for number in range(callers)]
    for _ in range(chosen.randrange(4)):
        await asyncio.sleep(0)
    given_up = set(chosen.sample(calls, giving_up))
    for each in given_up:
        each.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
    assert all(result is None for each, result in zip(calls, results, strict=True) if each not in given_up)
