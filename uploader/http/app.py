"""The ASGI application: finds the operation of each request in the route table, and turns exceptions into problem documents.
Ends requests whose caller has lost the right to make them, and requests that are still running when the server stops.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from uploader.diagnosis.health import Start
from uploader.errors import (
    BadRequest,
    MethodNotAllowed,
    NotFound,
    RangeNotSatisfiable,
    TooManyRequests,
    Unavailable,
    UploaderError,
)
from uploader.http.auth.authenticator import Authenticator, Origins
from uploader.http.bodies.intake import Intake
from uploader.http.resumable.dialect import ALIASES, ResumableHandlers
from uploader.http.resumable.request import PREFIX
from uploader.http.shared.exchange import ABORTED, ConcurrencyLimit, Exchange
from uploader.http.shared.mount import Mount, inside, leave_mount, mount_of_request
from uploader.http.shared.openapi import described_at, document
from uploader.http.shared.operation import Call, Operation, Routing, operations_of
from uploader.http.shared.problem import as_told, problem_response
from uploader.http.shared.proxies import Proxies
from uploader.http.shared.responses import Json
from uploader.runtime.meter import Cost, Meter, NotYourTurn, cost_of_request
from uploader.runtime.wait_budget import WaitBudget, wait_budget_of_request
from uploader.service.access import Identity
from uploader.service.audit_log import Actor, Via, actor_of_context
from uploader.service.precreate import Asker, asker_of_request
from uploader.service.revocations import Revocations, authority_of_context

logger = logging.getLogger(__name__)

_STARTING = "The server starts, and waits for a part that is away; nothing was acknowledged. Try again soon."
_WHILE_STARTING = frozenset({"/livez", "/readyz"})
_NOT_YOUR_TURN = "Others wait for this server, too, and it was not your turn for a while: try again later."

_STOPPING = "The server is stopping, and ended this request before it was done. Try again soon."
# The key in the lifespan state for the function that ends the running requests.
STOP_STATE = "stop"
# At a stop, a request whose client sends nothing is ended after this time and this number of looks.
_STILL_SECONDS, _LOOK_SECONDS, _LOOKS = 2.0, 0.25, 3

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]


@dataclass(eq=False, repr=False)
class Application:
    """Serves the operations. Only two coroutines lie between a request and its handler, because an upload of a chunk waits
    often, and each wait resumes all of them."""

    operations: list[Operation]
    authenticator: Authenticator
    lifespan: Lifespan | None = None
    _: KW_ONLY
    origins: Origins
    concurrency_limit: ConcurrencyLimit
    intake: Intake
    proxies: Proxies
    meter: Meter
    revocations: Revocations
    start: Start
    dialect: ResumableHandlers
    mount: Mount
    # The time that running requests have to end once the server stops.
    shutdown_timeout_seconds: float
    # True if a pre-create hook is set; each request then carries its client's address for the hook.
    pre_creates: bool = False

    def __post_init__(self) -> None:
        self.operations = [*self.operations, *operations_of(self)]
        # Starlette's router handles the lifespan messages; requests never reach it.
        self._start_and_end = Router(lifespan=self._live if self.lifespan else None).lifespan
        self._under_way: set[Exchange] = set()
        self.routing = Routing(self.operations, ALIASES)

    @cached_property
    def described(self) -> dict[str, Any]:
        return document(self.operations)

    @asynccontextmanager
    async def _live(self, app: Any) -> AsyncIterator[Mapping[str, Any]]:
        assert self.lifespan is not None
        async with self.lifespan(app) as state:
            yield {**state, STOP_STATE: self.stop}

    async def stop(self) -> None:
        """End the running requests; runs until cancelled. A request whose client sends nothing for 2 s, in a body or while
        it waits for a task, ends at once. All others end when `shutdown_timeout_seconds` have passed."""
        loop, standing = asyncio.get_running_loop(), dict[tuple[Exchange, float], int]()
        ends_at = loop.time() + self.shutdown_timeout_seconds
        while True:
            now, seen, standing = loop.time(), standing, {}
            for exchange in self._under_way:
                if (since := exchange.stands_since()) is not None:
                    # Bytes that arrived while the event loop was busy are read between the looks, and then count as
                    # progress.
                    standing[exchange, since] = looks = seen.get((exchange, since), 0) + 1
                    if looks >= _LOOKS and now - since >= _STILL_SECONDS:
                        exchange.running.cut(Unavailable(_STOPPING))
                if now >= ends_at:
                    exchange.running.cut(Unavailable(_STOPPING))
            await asyncio.sleep(_LOOK_SECONDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._start_and_end(scope, receive, send)
            return
        if is_below := bool(self.mount.origin or scope.get("root_path")):
            scope = self._enter(scope)
        exchange = Exchange(scope, receive, send)
        self._under_way.add(exchange)
        wait_budget_of_request.set(WaitBudget())
        try:
            request = Request(scope, exchange.receive, exchange.send)
            response = await self._respond(request, exchange)
            try:
                await response(scope, exchange.receive, exchange.send)
            except asyncio.CancelledError:
                response = self._cut(request, exchange)
                await response(scope, exchange.receive, exchange.send)
            if exchange.is_cancelled:
                raise asyncio.CancelledError()
        except UploaderError as error:
            # The status is already sent. The client notices the missing end by the content length, or because the connection
            # closes.
            exchange.outcome, exchange.reason, exchange.is_told = ABORTED, error.reason, error.is_told
            raise
        except BaseException:
            exchange.outcome = ABORTED
            raise
        finally:
            # Code that runs later in this task belongs to no request.
            actor_of_context.set(None)
            authority_of_context.set(None)
            wait_budget_of_request.set(None)
            cost_of_request.set(None)
            self.revocations.leave(exchange.running)
            self._under_way.discard(exchange)
            exchange.end()
            if is_below:
                leave_mount()

    def _enter(self, scope: Scope) -> Scope:
        """Strip the prefix if a route matches the rest of the path. Otherwise keep the path: a proxy may have stripped the
        prefix."""
        root_path = scope.get("root_path", "").rstrip("/")
        mount = self.mount.of_request(root_path)
        mount_of_request.set(mount)
        for prefix in (mount.prefix, root_path):
            path = inside(scope["path"], prefix) if prefix else None
            if path is not None and self.routing.find(path) is not None:
                return {**scope, "path": path}
        return scope

    async def _respond(self, request: Request, exchange: Exchange) -> Response:
        # Routes match the decoded path, where an encoded slash would look like a separator.
        if b"%2f" in request.scope.get("raw_path", b"").lower():
            return self._problem(request, exchange, NotFound())
        # The timers of a request keep its context alive. Copy only these three keys, or the context would keep the
        # connection alive.
        came_by = {name: request.scope.get(name) for name in ("type", "client", "headers")}
        if self.pre_creates:
            asker_of_request.set(Asker(partial(self.proxies.client_address, Request(came_by))))
        response = self.origins.preflight(request) if self.origins.are_any else None
        dialect = self._dialect_of(request)
        if response is None and dialect is not None:
            response = dialect.begin(request)
        if response is None:
            try:
                operation = self._route(request, exchange)
                if self.start.waits_for is not None and exchange.route not in _WHILE_STARTING:
                    raise Unavailable(_STARTING)
                self.concurrency_limit.admit_address(request, exchange)
                actor_of_context.set(partial(self._actor, came_by, None))
                identity = await self._identify(operation, request, exchange)
                self.concurrency_limit.admit_caller(identity.caller, exchange)
                actor_of_context.set(partial(self._actor, came_by, identity))
                cost = self._charge(identity, operation, exchange)
                if cost is not None and operation.takes is None:
                    await cost.begin(pauses=bool(operation.takes_bytes))
                answer = await operation.handler(Call(request, identity, self.intake, cost))
                response = Response(status_code=204) if answer is None else answer
                exchange.running.check()
                if cost is not None:
                    cost.answered(len(response.body) if isinstance(response, Json) else 0)
            except asyncio.CancelledError:
                response = self._cut(request, exchange)
            except Exception as error:
                response = self._problem(request, exchange, error)
            if dialect is not None:
                dialect.mark(request, response)
        if self.origins.are_any:
            self.origins.mark(request, response)
        return response

    async def _identify(self, operation: Operation, request: Request, exchange: Exchange) -> Identity:
        """Return the caller, and register the request for revocations. Raises the errors of
        `Authenticator.identify`."""
        generation = -1
        while generation != self.revocations.generation:  # a revocation since then may concern this caller
            generation = self.revocations.generation
            identity = await self.authenticator.identify(operation.access, request)
        exchange.visit = identity.visit
        if operation.access != "open":
            authority = identity.authority(as_admin=operation.needs_admin(identity))
            exchange.running.authority, exchange.running.visit = authority, identity.visit
            self.revocations.enter(exchange.running)
            if operation.acts_on_rights:
                authority_of_context.set(authority)
        return identity

    def _cut(self, request: Request, exchange: Exchange) -> Response:
        """Answer a request that was ended because its caller's right was revoked or because the server stops. If the answer
        has begun, raise the reason or CancelledError, which breaks the answer off."""
        self.revocations.leave(exchange.running)
        exchange.is_cancelled = exchange.running.error is None  # cancelled by the server that runs this application
        try:
            exchange.running.check()
        except UploaderError as error:
            if exchange.status:
                raise
            return self._problem(request, exchange, error)
        if exchange.status:
            raise asyncio.CancelledError()
        return self._problem(request, exchange, Unavailable(_STOPPING))

    def _charge(self, identity: Identity, operation: Operation, exchange: Exchange) -> Cost | None:
        """Begin to charge the request to its user; return None for a request without a user."""
        if not (party := identity.party):
            return None
        # A user may make any number of links. Visitors of all of them share one budget of the user, and take turns by link.
        line = "" if identity.visit is None else identity.visit.link.id
        cost = exchange.cost = self.meter.open(party, operation.route, line)
        cost_of_request.set(cost)
        return cost

    def _actor(self, came_by: Scope, identity: Identity | None) -> Actor:
        address = self.proxies.client_address(Request(came_by))
        if identity is None:
            return Actor(Via.REQUEST, None, address=address)
        user_id = None if identity.visit is not None else identity.user_id
        return Actor(Via.REQUEST, user_id or None, identity.token_id, address, identity.token_made_by)

    def _dialect_of(self, request: Request) -> ResumableHandlers | None:
        return self.dialect if request.scope["path"].startswith(PREFIX) else None

    def _route(self, request: Request, exchange: Exchange) -> Operation:
        found = self.routing.find(request.scope["path"])
        if found is None:
            raise NotFound()
        request.scope["path_params"] = found.path_params
        exchange.route = found.place.path
        operation = found.place.by_method.get(request.method)
        if operation is None:
            raise MethodNotAllowed()
        return operation

    def _problem(self, request: Request, exchange: Exchange, error: Exception) -> Response:
        match error:
            case NotYourTurn():
                # Tus clients give up at a 429.
                refusal = TooManyRequests if self._dialect_of(request) is None else Unavailable
                later = refusal(_NOT_YOUR_TURN, retry_after_seconds=error.retry_after_seconds)
                return self._problem(request, exchange, later)
            case UploaderError():
                if exchange.visit is not None:
                    error = as_told(error, exchange.visit.caller)
                exchange.outcome, exchange.reason, exchange.is_told = error.code, error.inside, error.is_told
                dialect = self._dialect_of(request)
                headers = self._headers_of(error, request)
                return problem_response(error, headers) if dialect is None else dialect.refuse(request, error, headers)
            case ClientDisconnect():
                exchange.outcome = "client-gone"
                return problem_response(BadRequest("The client went away."))
            case _:
                facts = {"method": request.method, "route": exchange.route}
                logger.error("request failed", extra=facts, exc_info=error)
                exchange.outcome = UploaderError.code
                return problem_response(
                    UploaderError("Something went wrong in the server; its log has the request id.")
                )

    def _headers_of(self, error: UploaderError, request: Request) -> dict[str, str]:
        match error:
            case MethodNotAllowed():
                found = self.routing.find(request.scope["path"])
                return {} if found is None else {"Allow": found.place.allow}
            case RangeNotSatisfiable():
                return {"Content-Range": f"bytes */{error.fields['size']}"}
            case _:
                return {}

    @Operation("GET /openapi.json", "This document", tag="operations", access="open", media_types=(Json.media_type,))
    async def _describe(self, _call: Call) -> Response:
        return Json(described_at(mount_of_request.get(), self.described))
