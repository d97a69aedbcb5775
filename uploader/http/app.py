"""The Starlette application that serves a route table: who calls is found out, and what is raised becomes a problem."""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from uploader.errors import BadRequest, MethodNotAllowed, NotFound, UploaderError
from uploader.http.auth import Authenticator
from uploader.http.body import Intake
from uploader.http.envelope import Envelope, exchange_of
from uploader.http.native import answer
from uploader.http.openapi import document
from uploader.http.operation import Call, Operation
from uploader.http.origins import Cors, Origins
from uploader.http.problem import problem_response
from uploader.service.accounts import Identity

logger = logging.getLogger(__name__)

_NOBODY = Identity("", admin=False)


def create_application(
    operations: list[Operation],
    authenticator: Authenticator,
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[Mapping[str, Any]]] | None = None,
    *,
    origins: Origins,
    intake: Intake,
) -> Starlette:
    """The application that serves a route table."""

    async def openapi(_call: Call) -> Response:
        return answer(described)

    itself = Operation(
        method="GET",
        path="/openapi.json",
        handler=openapi,
        summary="This document",
        tag="operations",
        access="open",
        responses={200: None},
    )
    operations = [*operations, itself]
    described = document(operations)
    by_path: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_path[operation.path].append(operation)
    application = Starlette(
        routes=[_route(path, at_path, authenticator, intake) for path, at_path in by_path.items()],
        middleware=[Middleware(Envelope), Middleware(Cors, origins)],
        exception_handlers={HTTPException: _routing_problem},
        lifespan=lifespan,
    )
    application.router.redirect_slashes = False
    return application


def _route(path: str, operations: list[Operation], authenticator: Authenticator, intake: Intake) -> Route:
    by_method = {operation.method: operation for operation in operations}
    if "GET" in by_method:
        by_method["HEAD"] = by_method["GET"]
    allow = {"Allow": ", ".join(sorted(by_method))}

    async def endpoint(request: Request) -> Response:
        operation = by_method.get(request.method)
        exchange = exchange_of(request)
        exchange.route = path
        if operation is None:
            exchange.outcome = MethodNotAllowed.code
            return problem_response(MethodNotAllowed(), allow)
        return await _run(operation, request, authenticator, intake)

    route = Route(path, endpoint)
    route.methods = None  # the endpoint answers 405 itself: the router would not know what to allow
    return route


async def _run(operation: Operation, request: Request, authenticator: Authenticator, intake: Intake) -> Response:
    """Authenticate, handle, and turn what is raised into a problem."""
    try:
        identity = await _identify(operation, request, authenticator)
        return await operation.handler(Call(request, identity, intake))
    except UploaderError as error:
        exchange_of(request).outcome = error.code
        headers = {"Content-Range": f"bytes */{error.fields['size']}"} if error.code == "range-not-satisfiable" else {}
        return problem_response(error, headers)
    except ClientDisconnect:
        exchange_of(request).outcome = "client-gone"
        return problem_response(BadRequest("The client went away."))
    except Exception:
        exchange_of(request).outcome = UploaderError.code
        logger.exception("request failed", extra={"method": request.method, "route": operation.path})
        return problem_response(UploaderError("Something went wrong in the server; its log has the request id."))


async def _identify(operation: Operation, request: Request, authenticator: Authenticator) -> Identity:
    """Who calls, as far as the operation asks. Raises Unauthenticated, Forbidden, Unavailable."""
    if operation.access == "open":
        return _NOBODY
    if operation.access == "user":
        return await authenticator.user(request)
    if operation.access == "reader":
        return await authenticator.reader(request)
    return await authenticator.admin(request)


def _routing_problem(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    problem = {404: NotFound, 405: MethodNotAllowed}.get(status, BadRequest)()
    exchange_of(request).outcome = problem.code
    return problem_response(problem)
