"""Who acts here and now, and the acts of theirs that transactions write.

The actor is one of the context: of a request, or of a job. Who is neither runs a command. Transactions run in threads that
know no context, so a service makes the act, and the transaction writes it.
"""

import os
import pwd
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime

from uploader.domain.trail.acts import Act, Action, Actor, Via
from uploader.service.ids import new_id

__all__ = ["Actor", "Via", "act", "actor", "actor_of_context"]

_MOST_ADDRESS = 64
# Asked when somebody acts: most requests are no acts, and where one comes from takes a while to say.
actor_of_context: ContextVar[Callable[[], Actor] | None] = ContextVar("actor", default=None)


def actor() -> Actor:
    """Who acts in this context."""
    found = actor_of_context.get()
    return Actor(Via.COMMAND, _os_user()) if found is None else found()


def act(
    action: Action,
    now: datetime,
    *,
    subject: str,
    user_id: str | None = None,
    by: Actor | None = None,
    details: Mapping[str, object] | None = None,
) -> Act:
    """What is about to be done, for its transaction to write. `by`: who does it, if that is not the actor of the context."""
    by = by or actor()
    return Act(
        id=new_id(),
        created_at=now,
        action=action.value,
        via=by.via.value,
        actor=by.name,
        token_id=by.token_id,
        address=by.address and by.address[:_MOST_ADDRESS],  # IPv6 may have a scope of any length
        user_id=user_id,
        subject=subject,
        details=details or {},
        token_made_by=by.token_made_by,
    )


def _os_user() -> str:
    """By the kernel, because the environment says what it was told to."""
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"
