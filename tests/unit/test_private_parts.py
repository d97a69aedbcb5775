"""The private parts of redis-py, uvicorn and asyncmy that this server uses: a version that changes one fails here, in one
sentence that names the part and the module to adapt."""

import asyncio
import inspect
import re
import signal
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
import uvicorn._types
from asyncmy.cursors import Cursor, SSCursor
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, DefaultParser
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from uvicorn.protocols.http import flow_control
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import Server, ServerState
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

import uploader
from uploader.bootstrap.processes import SleepingServer
from uploader.database.mysql import _hex_connection

REQUEST = b"POST /path HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"


def as_used(package: str, used_in: str, part: str, there: bool) -> None:
    """Say which package changed what, and which module of this server has to follow."""
    raised = "before you raise the pin in pyproject.toml."
    assert there, f"{package} {version(package)} has changed {part}: adapt {used_in} {raised}"


SERVER, SUPERVISOR = "uploader/http/server/http11.py", "uploader/bootstrap/processes.py"
as_redis_has_it = partial(as_used, "redis", "uploader/accounting/redis.py")
as_uvicorn_has_it = partial(as_used, "uvicorn", SERVER)


def takes(owner: object, name: str, *parameters: str) -> bool:
    """Whether it has a function of this name with these parameters."""
    function: Any = getattr(owner, name, None)
    return function is not None and (*inspect.signature(function).parameters,) in (parameters, ("self", *parameters))


def test_redis_has_the_methods_that_are_called_or_overridden() -> None:
    parse: Any = getattr(DefaultParser, "parse_error", None)
    found = parse is not None and isinstance(parse("NOSCRIPT no such script"), NoScriptError)
    as_redis_has_it("DefaultParser.parse_error", found)
    as_redis_has_it("Redis.evalsha", takes(Redis, "evalsha", "sha", "numkeys", "keys_and_args"))
    as_redis_has_it("Redis.aclose", takes(Redis, "aclose", "close_connection_pool"))
    as_redis_has_it("Redis.from_pool", takes(Redis, "from_pool", "connection_pool"))


async def test_redis_makes_connections_from_what_its_pool_keeps() -> None:
    pool = BlockingConnectionPool.from_url("redis://127.0.0.1:1", retry=Retry(NoBackoff(), 0), socket_timeout=5)
    kwargs: Any = getattr(pool, "connection_kwargs", None)
    as_redis_has_it("ConnectionPool.connection_kwargs", isinstance(kwargs, dict) and isinstance(kwargs["retry"], Retry))
    kind: Any = getattr(pool, "connection_class", None)
    as_redis_has_it("ConnectionPool.connection_class", isinstance(kind, type) and issubclass(kind, AbstractConnection))
    connection = kind(**{**kwargs, "retry": Retry(NoBackoff(), 0), "protocol": 2})
    as_redis_has_it("AbstractConnection._writer", getattr(connection, "_writer", "absent") is None)
    as_redis_has_it("AbstractConnection.socket_timeout", getattr(connection, "socket_timeout", None) == 5)
    as_redis_has_it("AbstractConnection.connect", takes(connection, "connect"))
    as_redis_has_it("AbstractConnection.disconnect", "nowait" in inspect.signature(connection.disconnect).parameters)


# Each method that is overridden or called, with its parameters.
METHODS = (
    *("connection_made(transport)", "connection_lost(exc)", "data_received(data)", "eof_received()"),
    *("pause_writing()", "resume_writing()", "on_message_begin()", "on_url(url)", "on_header(name, value)"),
    *("on_headers_complete()", "on_body(body)", "on_message_complete()", "on_response_complete()"),
    *("_start_asgi_task(cycle, app)", "_unset_keepalive_if_required()"),
)
OF_CONNECTION = (
    *("app_state", "connections", "cycle", "flow", "headers", "loop", "parser", "pipeline", "scheme", "scope"),
    *("transport", "url"),
)
# Each attribute of a cycle that is read or set, as it is when the head of REQUEST was read.
OF_CYCLE = {
    "body": b"",
    "chunked_encoding": None,
    "disconnected": False,
    "expected_content_length": 0,
    "keep_alive": True,
}
OF_CYCLE |= {"more_body": True, "response_complete": False, "response_started": False, "waiting_for_100_continue": True}


def test_no_other_module_looks_into_uvicorn() -> None:
    package = Path(uploader.__file__).parent
    found = {
        module.relative_to(package.parent).as_posix()
        for module in package.rglob("*.py")
        if re.search(r"(from|import) uvicorn[._]", module.read_text())
    }
    assert found == {SERVER, SUPERVISOR}


class Started(HttpToolsProtocol):
    """Runs no request."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None: ...


def test_uvicorn_has_the_methods() -> None:
    for method in METHODS:
        name, *parameters = re.findall(r"\w+", method)
        as_uvicorn_has_it(f"HttpToolsProtocol.{name}()", takes(HttpToolsProtocol, name, *parameters))


async def test_uvicorn_keeps_of_a_connection_and_of_a_request() -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None: ...

    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
    connection = Started(config=config, server_state=ServerState(), app_state={})
    transport: Any = SimpleNamespace(get_extra_info=lambda _name: None)
    connection.connection_made(transport)
    connection.data_received(REQUEST)
    for name in OF_CONNECTION:
        as_uvicorn_has_it(f"HttpToolsProtocol.{name}", hasattr(connection, name))
    for name, expected in OF_CYCLE.items():
        as_uvicorn_has_it(f"RequestResponseCycle.{name}", getattr(connection.cycle, name, "absent") == expected)
    for name in ("flow", "scope", "transport"):
        as_uvicorn_has_it(f"RequestResponseCycle.{name}", hasattr(connection.cycle, name))


def test_uvicorn_controls_the_flow_and_names_the_types_of_asgi() -> None:
    for name in ("drain", "pause_reading", "resume_reading"):
        as_uvicorn_has_it(f"FlowControl.{name}()", takes(flow_control.FlowControl, name))
    as_uvicorn_has_it("HIGH_WATER_LIMIT", isinstance(getattr(flow_control, "HIGH_WATER_LIMIT", None), int))
    for name in ("ASGI3Application", "ASGIReceiveCallable", "ASGISendCallable", "Scope"):
        as_uvicorn_has_it(f"uvicorn._types.{name}", hasattr(uvicorn._types, name))


def test_uvicorn_leaves_the_signals_of_several_processes_to_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda _number, _handler: None)
    supervisor = Multiprocess(uvicorn.Config("none"), [])
    there = getattr(supervisor, "processes", None) == []
    own = ("run", "handle_hup", "init_processes", "keep_subprocess_alive")
    for name in (*own, "handle_signals", "handle_term", "terminate_all", "join_all"):
        there = there and takes(supervisor, name)
    as_used("uvicorn", SUPERVISOR, "Multiprocess.processes, or a method of it", there)
    process = Process(uvicorn.Config("none"), [])
    process.child_conn.close()
    as_used("uvicorn", SUPERVISOR, "Process.child_conn, the end of a worker", not process.ping(60))
    as_used("uvicorn", SUPERVISOR, "Process.server, made when it is asked for", process._server is None)


async def test_uvicorn_serves_until_its_main_loop_ends() -> None:
    server = SleepingServer(uvicorn.Config("none"))
    there = takes(Server, "main_loop") and takes(Server, "handle_exit", "sig", "frame")
    as_used("uvicorn", SUPERVISOR, "Server.main_loop or handle_exit", there)
    serving = asyncio.ensure_future(server.main_loop())
    await asyncio.sleep(0)
    server.handle_exit(signal.SIGTERM, None)
    await asyncio.wait_for(serving, 60)
    as_used("uvicorn", SUPERVISOR, "Server.should_exit", server.should_exit)
    ((name, _date),) = server.server_state.default_headers
    as_used("uvicorn", SUPERVISOR, "ServerState.default_headers, with the date", name == b"date")


async def test_asyncmy_sends_each_parameter_through_its_connection() -> None:
    as_asyncmy_has_it = partial(as_used, "asyncmy", "uploader/database/mysql.py")
    connection: Any = _hex_connection()(db="none", read_timeout=7)
    as_used("asyncmy", "uploader/database/migrate.py", "Connection._read_timeout", connection._read_timeout == 7)
    for cursor in (Cursor, SSCursor):
        sent = connection.cursor(cursor).mogrify("%s %s %s", ("'\\", b"\xff'", None))
        as_asyncmy_has_it("Connection.literal()", sent == "_utf8mb4 X'275c' X'ff27' NULL")
        named = connection.cursor(cursor).mogrify("%(text)s", {"text": "'"})
        as_asyncmy_has_it("Connection.literal() of names", named == "_utf8mb4 X'27'")
    for value in (["'"], ("'",), {"'"}, object()):
        with pytest.raises(TypeError):
            connection.escape(value)
    plain = [
        True,
        7,
        0.5,
        Decimal("1.5"),
        datetime.fromisoformat("2020-01-02 03:04:05.000006"),
        date(2020, 1, 2),
        timedelta(hours=1),
    ]
    written = ["1", "7", "0.5e0", "1.5", "'2020-01-02 03:04:05.000006'", "'2020-01-02'", "'01:00:00'"]
    assert [connection.escape(value) for value in plain] == written
