"""TLS below HTTP: reads the certificate at the start and on reload, and does the handshake of each connection within limits.
After the handshake, a connection behaves as any other one.

Bodies go through the parser and files through Python, because the socket carries encrypted bytes.
"""

import asyncio
import logging
import os
import socket
import ssl
import struct
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from uploader.errors import ConfigurationError
from uploader.http.server.connections import CONNECTIONS_STATE, ConnectionLimits, StallWatch, WriteBatching
from uploader.http.server.http11 import HttpConnection, LimitedProtocol
from uploader.settings import Settings

logger = logging.getLogger(__name__)

# The key in the lifespan state for the `Handshakes` of the process.
HANDSHAKES_STATE = "handshakes"

# The same limit as without TLS. The loop drops buffered bytes that the client has not taken half a minute after the close.
_HELD_BYTES = 64 << 10
# `tcpi_bytes_acked` in `struct tcp_info` (tcp(7), linux/tcp.h).
_ACKED_BYTES = struct.Struct("120xQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    context: ssl.SSLContext
    valid_from: datetime
    valid_until: datetime

    def warn_unless_valid(self, now: datetime) -> None:
        """Log a warning if the certificate is expired or not yet valid. The server starts nevertheless: the certificate may
        be renewed."""
        if not self.valid_from <= now <= self.valid_until:
            logger.warning(
                "UPLOADER_TLS_CERTIFICATE: the certificate is not valid now",
                extra={"valid_from": self.valid_from.isoformat(), "valid_until": self.valid_until.isoformat()},
            )


class CertificateInForce:
    def __init__(self, settings: Settings) -> None:
        """Raises ConfigurationError."""
        self._settings = settings
        self._certificate = read_certificate(settings)

    @property
    def context(self) -> ssl.SSLContext:
        return self._certificate.context

    async def reload(self, now: datetime) -> None:
        """Reload the certificate for new connections. If the new certificate is unusable, log the reason and keep the old
        one."""
        try:
            self._certificate = await asyncio.to_thread(read_certificate, self._settings)
        except ConfigurationError as error:
            logger.error("the certificate was not reloaded, the old one stays", extra={"reason": error.detail})
            return
        logger.info("certificate reloaded", extra={"valid_until": self._certificate.valid_until.isoformat()})
        self._certificate.warn_unless_valid(now)


def read_certificate(settings: Settings) -> Certificate:
    """Read certificate and key. Raises ConfigurationError with the setting, the file and the fault."""
    # Imported here, to save its memory in servers without TLS.
    from cryptography import x509

    assert settings.tls_certificate is not None
    assert settings.tls_key is not None
    chain = _content("CERTIFICATE", settings.tls_certificate)
    _content("KEY", settings.tls_key)
    try:
        leaf = x509.load_pem_x509_certificates(chain)[0]
    except ValueError:
        raise _unfit("CERTIFICATE", settings.tls_certificate, "is not a certificate in PEM") from None
    return Certificate(
        context=_context(settings.tls_certificate, settings.tls_key),
        valid_from=leaf.not_valid_before_utc,
        valid_until=leaf.not_valid_after_utc,
    )


def _content(name: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _unfit(name, file, error.strerror or str(error)) from None


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        # An empty password, or OpenSSL would ask for one at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError) as error:
        is_another = isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH"
        what = f"is not the key of {certificate}" if is_another else "is no key in PEM without a password"
        raise _unfit("KEY", key, what) from None
    return context


def _unfit(name: str, file: Path, what: str) -> ConfigurationError:
    return ConfigurationError(f"UPLOADER_TLS_{name}: {file}: {what}")


class Handshakes:
    """The running handshakes of the process, oldest first. Beyond the limit, the oldest is cancelled."""

    def __init__(self, certificate: CertificateInForce) -> None:
        self.certificate = certificate
        self._under_way: dict[asyncio.Task[None], None] = {}

    def begin(self, handshake: Coroutine[Any, Any, None], most: int) -> None:
        task = asyncio.get_running_loop().create_task(handshake)
        self._under_way[task] = None
        task.add_done_callback(self._under_way.pop)
        if len(self._under_way) > most:
            next(iter(self._under_way)).cancel()

    def close(self) -> None:
        for task in self._under_way:
            task.cancel()


class Handshake(asyncio.Protocol):
    """Accepts a connection without TLS, then does the handshake. If the event loop had the certificate itself, it would
    announce connections only after their handshakes, and nothing could limit these."""

    def __init__(self, **of_uvicorn: Any) -> None:
        self._of_uvicorn = of_uvicorn
        self._handshakes: Handshakes = of_uvicorn["app_state"][HANDSHAKES_STATE]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Duplicate the socket and drop the transport, which would read from it at once."""
        taken = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        taken.setblocking(False)
        limits: ConnectionLimits = self._of_uvicorn["app_state"][CONNECTIONS_STATE].limits
        self._handshakes.begin(self._shake_hands(taken, limits.header_timeout_seconds), limits.reserved_connections)
        transport.abort()

    async def _shake_hands(self, taken: socket.socket, timeout_seconds: float) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: SecureConnection(**self._of_uvicorn),
                taken,
                ssl=self._handshakes.certificate.context,
                ssl_handshake_timeout=timeout_seconds,
            )
        except OSError as error:  # includes ssl.SSLError
            logger.debug("no handshake", extra={"reason": str(error)})
        except asyncio.CancelledError:
            taken.close()
            raise


class _SecureStallWatch(StallWatch):
    def untaken_bytes(self) -> int:
        """Return the acknowledged bytes as a negative number. Bytes between TLS and the kernel cannot be counted, but the
        result falls whenever the client takes bytes."""
        connection = self.transport.get_extra_info("socket")
        try:
            told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_BYTES.size)
        except OSError:
            return 0  # the socket is closed
        return -int(_ACKED_BYTES.unpack(told)[0])


class _SecureProtocol(LimitedProtocol):
    stall_watch = _SecureStallWatch


class SecureConnection(HttpConnection):
    protocol_class = _SecureProtocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(_HELD_BYTES)
        self._begin(_SecureWrites(transport, self._http.loop))

    def eof_received(self) -> bool:
        """Close both sides: event loops do not support half-closed TLS connections."""
        return False


class _SecureWrites(WriteBatching):
    """TLS connections cannot be half-closed."""

    def write_eof(self) -> None:
        """Flush, and drop later writes. The headers of the last answer tell the client that it is the last."""
        self.flush()
        self._ended = True
