"""HTTP with patience: every call is repeated while that may help, and errors use the words of the caller. Knows
problems and tokens, and no path of the API.

All calls of the contract may be repeated, so a lost answer only costs another call.
"""

import asyncio
import errno
import importlib.util
import json
import socket
import ssl
import urllib.request
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from uploader import __version__
from uploader.client.errors import (
    BadAnswer,
    BadProxy,
    ClientError,
    NotFound,
    ServerProblem,
    Unauthenticated,
    Unreachable,
)
from uploader.client.pace import BODY_LIMITED, OnRetry, Pace, Patience, Retrying, error_of
from uploader.units import format_size, mask_password

# OpenSSL's reasons for an answer without TLS.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})
# An HTTPS server answers plain HTTP with words like `sent to HTTPS port` (nginx, Apache, Go).
_ASKED_WITHOUT_TLS = b"HTTPS"

Token = str | Callable[[], str]

_TIMEOUT_SECONDS = 60.0
# A page of a thousand files has at most 3 MiB. A caller's open uploads, and the signature of a file of 3 TiB, fit, too.
_MOST_BYTES = 64 << 20
# For a problem. The longest one has the outcome of each member of a batch.
_MOST_PROBLEM_BYTES = 2 << 20
# The status for bytes that are read from another server.
_SENT_ON_STATUS = 307
# Temporary statuses without a problem document of ours, besides all from 500 on.
_PASSING_STATUS = frozenset({408, 425, 429})
# From a proxy that can't reach the server; 520 and more are Cloudflare's.
_GATEWAY_STATUS = frozenset({502, 504, *range(520, 528)})
# A header that is too large, in nginx's words.
_LARGE_HEAD = b"Request Header Or Cookie Too Large"


def origin_of(url: httpx2.URL) -> str:
    """Return scheme, host and port, as a person would write them."""
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def unreachable(error: httpx2.RequestError, *, answered: bool) -> Unreachable:
    """`answered`: this server has answered before."""
    detail, may_pass = _reason(error, error.request.url, answered=answered)
    return Unreachable(detail, retryable=may_pass or answered)


def stranger(response: httpx2.Response) -> BadAnswer:
    """Make the error for an answer of another kind of server."""
    url, status = response.url, _status_of(response)
    if response.status_code == 400 and _ASKED_WITHOUT_TLS in response.content:
        return BadAnswer(f"{origin_of(url)} speaks TLS: the URL begins with https://")
    if "location" in response.headers:
        return BadAnswer(f"{url} is answered {status}; it leads to {response.headers['location']}")
    return BadAnswer(f"{url} is answered {status}: is {origin_of(url)} an upload server?")


def _status_of(response: httpx2.Response) -> str:
    return f"{response.status_code} {response.reason_phrase}".rstrip()


def _token_length(response: httpx2.Response) -> str:
    token = response.request.headers.get("Authorization", "").removeprefix("Bearer ")
    return f"; the token has {len(token):,} characters" if token else ""


def _proxy_of(url: httpx2.URL) -> str | None:
    """Return the proxy that the environment names for a URL, without its password."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    return None if not proxy or urllib.request.proxy_bypass(url.host) else mask_password(proxy)


def _check_proxies() -> None:
    """Raises BadProxy for a proxy of the environment that no HTTP client can use."""
    for name, proxy in urllib.request.getproxies().items():
        if name in ("http", "https", "all"):
            shown = f"{name.upper()}_PROXY is {mask_password(proxy)!r}"
            try:
                url = httpx2.URL(proxy if "://" in proxy else f"http://{proxy}")
            except httpx2.InvalidURL as error:
                raise BadProxy(f"{shown}, which is not a URL: {error}") from error
            if url.scheme.startswith("socks") and importlib.util.find_spec("socksio") is None:
                raise BadProxy(f"{shown}: for SOCKS the package socksio has to be installed")
            if url.scheme not in ("http", "https", "socks5", "socks5h") or not _has_place(url):
                raise BadProxy(f"{shown}, which is not a URL such as http://proxy.example:3128")


def _has_place(url: httpx2.URL) -> bool:
    return bool(url.host) and (url.port or 0) < 1 << 16


def _reason_of_proxy(error: httpx2.RequestError, url: httpx2.URL) -> str | None:
    """Return what is wrong with the proxy of the environment; None if the error is not the proxy's."""
    proxy = _proxy_of(url)
    if proxy is None or any(isinstance(cause, ssl.SSLError) for cause in _causes(error)):
        return None
    if isinstance(error, httpx2.ProxyError):
        return f"the proxy {proxy} does not connect to {origin_of(url)}: {error}"
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return f"the proxy {proxy}, which the environment names, can't be reached: is it up, and its URL right?"
    return None


def _reason(error: httpx2.RequestError, url: httpx2.URL, *, answered: bool) -> tuple[str, bool]:
    """Return the reason, and True if the error may pass."""
    origin = origin_of(url)
    if (why := _reason_of_proxy(error, url)) is not None:
        return why, True
    for cause in _causes(error):
        match cause:
            case ssl.SSLCertVerificationError():
                why = cause.verify_message
                return f"the certificate of {origin} is not trusted: {why}; SSL_CERT_FILE may name whom to trust", False
            case ssl.SSLError(reason=str() as reason) if reason in _NO_TLS:
                plain = origin_of(url.copy_with(scheme="http"))
                return f"{origin} does not speak TLS: is it {plain}, or another port?", False
            case socket.gaierror():
                words = f"the host {url.host} can't be looked up: {cause.strerror}"
                return f"{words}; is the name right, and the network up?", cause.errno == socket.EAI_AGAIN
            case ConnectionRefusedError():
                return f"{origin} refuses connections: does the server run, and is the port right?", True
            case OSError(errno=errno.EHOSTUNREACH | errno.ENETUNREACH):
                return f"there is no way to {origin}: is the network up?", True
            case httpx2.ConnectTimeout():
                return f"{origin} does not answer at all: is the host right, and the network up?", True
            case httpx2.TimeoutException():
                return f"{origin} has not answered in time", True
            case httpx2.RemoteProtocolError() if "illegal status line" in str(cause):
                return f"{origin} does not speak HTTP: is the port right?", False
            case httpx2.RemoteProtocolError() | httpx2.ReadError() | httpx2.WriteError() if not answered:
                instead = "" if url.scheme == "https" else "is it https://, or "
                return f"{origin} ends connections without an answer: {instead}another port?", True
            case httpx2.RemoteProtocolError() | httpx2.ReadError() | httpx2.WriteError():
                return f"the connection to {origin} broke", True
    return f"{origin}: {str(error) or type(error).__name__}", True


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the causes of an error, innermost first, because it says most; stop at errors of this client."""
    inner = error.__cause__ or error.__context__
    if inner is not None and not isinstance(inner, ClientError):
        yield from _causes(inner)
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _causes(each)
    yield error


class Transport:
    """One server and one token."""

    def __init__(
        self,
        url: str,
        token: Token | None,
        *,
        patience: Patience,
        connections: int,
        on_retry: OnRetry | None = None,
        http_transport: httpx2.AsyncBaseTransport | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._patience = patience
        self._pace = pace or Pace(None)
        self._on_retry = on_retry
        self._token = token
        self._answered = False
        self._http_transport = http_transport
        # Besides the connections that send chunks, some stay free for questions.
        self._limits = httpx2.Limits(max_connections=connections + 4, max_keepalive_connections=connections + 4)
        self._url = _checked_url(url)
        if http_transport is None:
            _check_proxies()
        self._clients: dict[bool, httpx2.AsyncClient] = {}
        self._http = self._client_for(self._url)

    def use_token(self, token: Token | None) -> None:
        """Use another token from now on."""
        self._token = token

    def absolute(self, url: str) -> str:
        """Return the absolute URL of a URL from the server."""
        try:
            return str(self._url.join(url))
        except httpx2.InvalidURL as error:
            raise BadAnswer(f"{url!r} is not a URL: {error}") from error

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    def _client_for(self, url: httpx2.URL) -> httpx2.AsyncClient:
        """Return the HTTP client for a URL. Only HTTPS needs the trusted certificates, which take long to read."""
        secure = url.scheme == "https"
        if secure not in self._clients:
            self._clients[secure] = httpx2.AsyncClient(
                base_url=self._url,
                # No compression: nothing grows after the network.
                headers={"User-Agent": f"uploader-client/{__version__}", "Accept-Encoding": "identity"},
                timeout=_timeout(_TIMEOUT_SECONDS),
                limits=self._limits,
                transport=self._http_transport,
                verify=True if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            )
        return self._clients[secure]

    def retrying(self) -> Retrying:
        return Retrying(self._patience, self._on_retry)

    async def request(self, method: str, path: str, **more: Any) -> httpx2.Response:
        """Send a request, again while that may help. Raises ServerProblem, Unreachable, BadAnswer."""
        retrying = self.retrying()
        while True:
            try:
                return await self.request_once(method, path, **more)
            except NotFound as error:
                error.after_retry = retrying.failures > 0
                raise
            except ClientError as error:
                await retrying.pause(error)

    async def request_once(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content: AsyncIterable[bytes] | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        timeout_seconds: float = _TIMEOUT_SECONDS,
    ) -> httpx2.Response:
        """Try once. `body` is sent as JSON, `content` as it is; content in pieces is sent at the pace."""
        timeout = _timeout(timeout_seconds)
        if isinstance(content, AsyncIterable):
            content = self._pace.paced(content)
        request = await self._request(
            method, path, json=body, content=content, headers=headers, params=params, timeout=timeout
        )
        async with self._streaming(request, answered=self._answered) as response:
            self._answered = True
            _raise_for_problem(response)
            return await _read(response)

    @asynccontextmanager
    async def stream(
        self, path: str, headers: Mapping[str, str], method: str = "GET", body: Any = None
    ) -> AsyncIterator[httpx2.Response]:
        """Try once to read an answer piece by piece, also from another server that the answer leads to. Raises as
        `request_once`, also during the reading."""
        request = await self._request(method, path, headers, json=body)
        async with self._streaming(request, answered=self._answered) as response:
            self._answered = True
            if response.status_code != _SENT_ON_STATUS:
                _raise_for_problem(response)
                yield response
                return
        async with self._streaming(self._request_sent_on(response), answered=False) as elsewhere:
            _raise_for_elsewhere(elsewhere)
            yield elsewhere

    @asynccontextmanager
    async def _streaming(self, request: httpx2.Request, *, answered: bool) -> AsyncIterator[httpx2.Response]:
        try:
            response = await self._client_for(request.url).send(request, stream=True)
            answered = True
            try:
                yield response if response.status_code < 300 else await _read_problem(response)
            finally:
                await response.aclose()
        except httpx2.RequestError as error:
            raise unreachable(error, answered=answered) from error

    def _request_sent_on(self, response: httpx2.Response) -> httpx2.Request:
        """Make the same request for another server, without the token, which must not leak, and without a condition on
        an ETag, which differs there. Raises BadAnswer."""
        asked = response.request.headers
        headers = {name: asked[name] for name in ("Range", "Accept-Encoding", "User-Agent") if name in asked}
        try:
            url = response.url.join(response.headers["location"])
        except (KeyError, httpx2.InvalidURL):
            raise stranger(response) from None
        if url.scheme not in ("http", "https") or not url.host:
            raise stranger(response)
        return self._http.build_request("GET", url, headers=headers)

    async def blocks(self, response: httpx2.Response, most_bytes: int) -> AsyncIterator[bytes]:
        """Yield the body of a stream, at the pace."""
        async for block in response.aiter_raw(self._pace.piece_bytes(most_bytes)):
            await self._pace.take(len(block))
            yield block

    async def _request(self, method: str, path: str, headers: Mapping[str, str] | None, **more: Any) -> httpx2.Request:
        token = await asyncio.to_thread(self._token) if callable(self._token) else self._token
        all_headers = dict(headers or {})
        if token is not None:
            if not (token.isascii() and token.isprintable()):
                raise Unauthenticated(
                    "the token holds characters that no token has", code="unauthenticated", status=401
                )
            all_headers["Authorization"] = f"Bearer {token}"
        return self._http.build_request(method, path, headers=all_headers, **more)


async def _read(response: httpx2.Response) -> httpx2.Response:
    """Read an answer with its body. Raises BadAnswer early for one that is too large, or encoded without request."""
    if _is_encoded(response):
        raise BadAnswer(
            f"{response.url} is answered in {response.headers['content-encoding']!r}, which was not asked for"
        )
    body = await _read_most(response, _MOST_BYTES)
    if body is None:
        raise BadAnswer(f"{response.url} is answered with more than {_MOST_BYTES >> 20} MiB")
    return _with_body(response, body)


async def _read_problem(response: httpx2.Response) -> httpx2.Response:
    """Read an answer whose status is an error. A body that can't be our problem is left out."""
    return _with_body(
        response, b"" if _is_encoded(response) else await _read_most(response, _MOST_PROBLEM_BYTES) or b""
    )


def _is_encoded(response: httpx2.Response) -> bool:
    return response.headers.get("content-encoding", "").lower() not in ("", "identity")


async def _read_most(response: httpx2.Response, most_bytes: int) -> bytes | None:
    """Return the body; None if it is longer than `most_bytes`, without reading the rest."""
    body = bytearray()
    async for block in response.aiter_bytes():  # not encoded
        body += block
        if len(body) > most_bytes:
            return None
    return bytes(body)


def _with_body(response: httpx2.Response, body: bytes) -> httpx2.Response:
    return httpx2.Response(
        response.status_code,
        headers=response.headers,
        content=body,
        request=response.request,
        extensions=response.extensions,
    )


def _checked_url(url: str) -> httpx2.URL:
    """Raises ValueError for an invalid URL of a server."""
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ValueError(f"{url!r} is not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not _has_place(parsed):
        raise ValueError(f"{url!r} is not a URL such as https://uploads.example.org")
    return parsed


def _timeout(seconds: float) -> httpx2.Timeout:
    return httpx2.Timeout(seconds, connect=10, pool=None)


def _raise_for_problem(response: httpx2.Response) -> None:
    status = response.status_code
    if status < 300:
        return
    problem = _problem_of(response)
    if problem is None:
        _raise_for_proxy(response)
        if status >= 500 or status in _PASSING_STATUS:
            away = ": a proxy is there, and does not reach the server" if status in _GATEWAY_STATUS else ""
            raise ServerProblem(
                f"{origin_of(response.url)} answers {_status_of(response)}{away}",
                code="unavailable",
                status=status,
                retryable=True,
                retry_after_seconds=_retry_after_seconds(response),
            )
        raise stranger(response)
    if problem["code"] == "unauthenticated":
        problem = problem | {"detail": _why_unknown(response.request, str(problem.get("detail")))}
    if problem["code"] == "not-found":  # the path itself is missing, not a file or an upload
        problem = problem | {"detail": f"there is nothing at {response.url}: is the server's URL right?"}
    if status == 431:
        problem = problem | {"detail": f"{problem.get('detail')}{_token_length(response)}"}
    raise error_of(problem, status, _retry_after_seconds(response))


def _raise_for_proxy(response: httpx2.Response) -> None:
    """Raise the error for a refusal that only a proxy gives."""
    status, origin, code, fields = response.status_code, origin_of(response.url), "bad-answer", dict[str, Any]()
    if status == 413:
        code, fields = BODY_LIMITED, {"body_bytes": int(response.request.headers.get("Content-Length", 0))}
        detail = f"a proxy before {origin} limits bodies to less than {format_size(fields['body_bytes'])}"
    elif status == 431 or (status == 400 and _LARGE_HEAD in response.content):
        told = f"{_status_of(response)}{_token_length(response)}"
        detail = f"a proxy before {origin} takes no requests with so large a head: {told}"
    elif status == 407:
        detail = f"a proxy before {origin} asks for a user and a password: {_status_of(response)}"
    else:
        return
    raise ServerProblem(detail, code=code, status=status, fields=fields)


def _raise_for_elsewhere(response: httpx2.Response) -> None:
    """Raise for an error of another server. Retryable, because the next call gets a new URL."""
    if response.status_code >= 300:
        raise ServerProblem(
            f"{origin_of(response.url)}, where the server keeps its bytes, answers {_status_of(response)}",
            code="unavailable",
            status=response.status_code,
            retryable=True,
            retry_after_seconds=_retry_after_seconds(response),
        )


def _why_unknown(request: httpx2.Request, detail: str) -> str:
    """Return the server's reason. A header's name is left out, because only authors of requests need it."""
    origin = origin_of(request.url)
    if "Authorization" not in detail:
        return f"{origin}: {detail}"
    if "Authorization" in request.headers:
        return f"{origin} does not know the token: it is mistyped, was revoked, or is of another server"
    return f"{origin} asks for a token, and none was given"


def _problem_of(response: httpx2.Response) -> dict[str, Any] | None:
    """Return the members of a problem (RFC 9457) with a code; None for other answers."""
    if not response.headers.get("content-type", "").startswith("application/problem+json"):
        return None
    try:
        problem = json.loads(response.content)
    except (ValueError, RecursionError):
        return None
    return problem if isinstance(problem, dict) and "code" in problem else None


def _retry_after_seconds(response: httpx2.Response) -> float | None:
    """Return `Retry-After` in seconds. A date is left to the ordinary pause."""
    text = response.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 9 else None
