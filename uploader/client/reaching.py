"""Why a server was not reached, or is none of ours, in the words of who asked: the URL, what is wrong, what to look at.

What points to a wrong URL will not pass by itself; but what has answered once is at the right one, and only away.
"""

import errno
import socket
import ssl
from collections.abc import Iterator

import httpx2

from uploader.client.errors import BadAnswer, ClientError, Unreachable

# What OpenSSL says of an answer that is no TLS.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})
# An HTTPS server that is asked in plain HTTP says so, in words like `sent to HTTPS port` (nginx, Apache, Go).
_ASKED_WITHOUT_TLS = b"HTTPS"


def origin_of(url: httpx2.URL) -> str:
    """Scheme, host and port, as a person would write them."""
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def unreachable(error: httpx2.RequestError, *, answered: bool) -> Unreachable:
    """`answered`: whether this server has answered before."""
    detail, may_pass = _reason(error, error.request.url, answered=answered)
    return Unreachable(detail, retryable=may_pass or answered)


def stranger(response: httpx2.Response) -> BadAnswer:
    """Something else has answered."""
    url, status = response.url, f"{response.status_code} {response.reason_phrase}"
    if response.status_code == 400 and _ASKED_WITHOUT_TLS in response.content:
        return BadAnswer(f"{origin_of(url)} speaks TLS: the URL begins with https://")
    if "location" in response.headers:
        return BadAnswer(f"{url} is answered {status}; it leads to {response.headers['location']}")
    return BadAnswer(f"{url} is answered {status}: is {origin_of(url)} an upload server?")


def _reason(error: httpx2.RequestError, url: httpx2.URL, *, answered: bool) -> tuple[str, bool]:
    """What is wrong, and whether it may pass."""
    origin = origin_of(url)
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
    """What it came from, the innermost first: that says most. An error of ours before it is another story."""
    inner = error.__cause__ or error.__context__
    if inner is not None and not isinstance(inner, ClientError):
        yield from _causes(inner)
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _causes(each)
    yield error
