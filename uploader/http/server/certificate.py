"""The certificate that the server shows, with its key: read at the start, and anew when it is told to."""

import asyncio
import logging
import ssl
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from uploader.errors import ConfigurationError
from uploader.settings import Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """One that was read, and what new connections begin with."""

    context: ssl.SSLContext
    valid_from: datetime
    valid_until: datetime

    def warn_unless_valid(self, now: datetime) -> None:
        """Clients refuse it; the server starts all the same, as somebody may be about to renew it."""
        if not self.valid_from <= now <= self.valid_until:
            logger.warning(
                "UPLOADER_TLS_CERTIFICATE: the certificate is not valid now",
                extra={"valid_from": self.valid_from.isoformat(), "valid_until": self.valid_until.isoformat()},
            )


class CertificateInForce:
    """That of one process."""

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigurationError, as `read_certificate` does."""
        self._settings = settings
        self._certificate = read_certificate(settings)

    @property
    def context(self) -> ssl.SSLContext:
        return self._certificate.context

    async def reload(self, now: datetime) -> None:
        """Take what the files have now, for new connections. What is not fit is told in the log, and changes nothing."""
        try:
            self._certificate = await asyncio.to_thread(read_certificate, self._settings)
        except ConfigurationError as error:
            logger.error("the certificate was not reloaded, the old one stays", extra={"reason": error.detail})
            return
        logger.info("certificate reloaded", extra={"valid_until": self._certificate.valid_until.isoformat()})
        self._certificate.warn_unless_valid(now)


def read_certificate(settings: Settings) -> Certificate:
    """What UPLOADER_TLS_CERTIFICATE and UPLOADER_TLS_KEY name. Raises ConfigurationError with the setting, the file and what
    is wrong with it."""
    # Here, because who does without TLS does without the memory that it takes.
    from cryptography import x509

    assert settings.tls_certificate is not None
    assert settings.tls_key is not None
    chain = _content("CERTIFICATE", settings.tls_certificate)
    _content("KEY", settings.tls_key)
    try:
        leaf = x509.load_pem_x509_certificates(chain)[0]
    except ValueError:
        raise _unfit("CERTIFICATE", settings.tls_certificate, "is no certificate in PEM") from None
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
        # With a password, lest OpenSSL ask the terminal for one.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError) as error:
        is_another = isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH"
        what = f"is not the key of {certificate}" if is_another else "is no key in PEM without a password"
        raise _unfit("KEY", key, what) from None
    return context


def _unfit(name: str, file: Path, what: str) -> ConfigurationError:
    return ConfigurationError(f"UPLOADER_TLS_{name}: {file}: {what}")
