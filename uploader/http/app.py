"""The Starlette application that serves a route table: who calls is found out, and what is raised becomes a problem."""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from uploader.errors import BadRequest, MethodNotAllowed, NotFound, UploaderError
from uploader.http.auth.authenticator import Authenticator
from uploader.http.auth.origins import Origins
from uploader.http.bodies.intake import Intake
from uploader.http.native.uploads import answer
from uploader.http.shared.exchange import Envelope, exchange_of
from uploader.http.shared.openapi import document
from uploader.http.shared.operation import Call, Operation
from uploader.http.shared.problem import problem_response
from uploader.http.shared.routing import Routing
from uploader.service.access.accounts import Identity

logger = logging.getLogger(__name__)

_NOBODY = Identity("", admin=False)

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]


class Application(Starlette):
    """Starlette, without its layers around each request: a path is looked up here, and errors end where they are raised."""

    def __init__(
        self,
        operations: list[Operation],
        authenticator: Authenticator,
        lifespan: Lifespan | None = None,
        *,
        origins: Origins,
        intake: Intake,
    ) -> None:
        super().__init__(lifespan=lifespan)
        operations = [*operations, _itself(self._describe)]
        self._authenticator = authenticator
        self._origins = origins
        self._intake = intake
        self._described = document(operations)
        self._envelope = Envelope(self._serve)
        self.routing = Routing(operations)

    def build_middleware_stack(self) -> ASGIApp:
        return self._receive

    async def _receive(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._envelope(scope, receive, send)
        else:
            await self.router(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._respond(Request(scope, receive, send))
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        # What is looked up is the decoded path, where an encoded slash would pass for one that separates.
        if b"%2f" in request.scope.get("raw_path", b"").lower():
            return _problem(request, NotFound())
        response = self._origins.preflight(request) or await self._dispatch(request)
        self._origins.mark(request, response)
        return response

    async def _dispatch(self, request: Request) -> Response:
        found = self.routing.find(request.scope["path"])
        if found is None:
            return _problem(request, NotFound())
        request.scope["path_params"] = found.path_params
        exchange_of(request).route = found.place.path
        operation = found.place.by_method.get(request.method)
        if operation is None:
            return _problem(request, MethodNotAllowed(), {"Allow": found.place.allow})
        return await self._run(operation, request)

    async def _run(self, operation: Operation, request: Request) -> Response:
        """Authenticate, handle, and turn what is raised into a problem."""
        try:
            identity = await self._identify(operation, request)
            return await operation.handler(Call(request, identity, self._intake))
        except UploaderError as error:
            unsatisfiable = error.code == "range-not-satisfiable"
            return _problem(
                request, error, {"Content-Range": f"bytes */{error.fields['size']}"} if unsatisfiable else {}
            )
        except ClientDisconnect:
            exchange_of(request).outcome = "client-gone"
            return problem_response(BadRequest("The client went away."))
        except Exception:
            logger.exception("request failed", extra={"method": request.method, "route": operation.path})
            return _problem(request, UploaderError("Something went wrong in the server; its log has the request id."))

    async def _identify(self, operation: Operation, request: Request) -> Identity:
        """Who calls, as far as the operation asks. Raises Unauthenticated, Forbidden, Unavailable."""
        if operation.access == "open":
            return _NOBODY
        if operation.access == "user":
            return await self._authenticator.user(request)
        if operation.access == "reader":
            return await self._authenticator.reader(request)
        return await self._authenticator.admin(request)

    async def _describe(self, _call: Call) -> Response:
        return answer(self._described)


def _itself(handler: Callable[[Call], Any]) -> Operation:
    return Operation(
        method="GET",
        path="/openapi.json",
        handler=handler,
        summary="This document",
        tag="operations",
        access="open",
        responses={200: None},
    )


def _problem(request: Request, error: UploaderError, headers: dict[str, str] | None = None) -> Response:
    exchange_of(request).outcome = error.code
    return problem_response(error, headers)
