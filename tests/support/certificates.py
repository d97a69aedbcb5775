"""Certificates for the servers and the clients of a test."""

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certified:
    """The files of a certificate and of its key."""

    certificate: Path
    key: Path


class Authority:
    """Vouches for those to whom it issues certificates."""

    def __init__(self, directory: Path, name: str = "the tests") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self.file = directory / "ca.pem"
        _write(self.file, _issued(self._name, self._key, self._name, self._key, x509.BasicConstraints(True, 0)))

    def issue(self, name: str, address: str = "127.0.0.1") -> Certified:
        """For a server at an IP address or a host's name, or for a client, of which nobody asks the address."""
        key = ec.generate_private_key(ec.SECP256R1())
        files = Certified(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        _write(files.certificate, _issued(_named(name), key, self._name, self._key, _known_by(address)))
        _write_key(files.key, key)
        return files

    def client(self) -> ssl.SSLContext:
        """Of a client with a certificate."""
        context = ssl.create_default_context(cafile=self.file)
        mine = self.issue("a client of the tests")
        context.load_cert_chain(mine.certificate, mine.key)
        return context


def self_signed(directory: Path, address: str) -> tuple[Path, Path]:
    """The files of a certificate for an IP address, which vouches for itself, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    files = directory / "certificate.pem", directory / "key.pem"
    _write(files[0], _issued(_named(address), key, _named(address), key, _known_by(address)))
    _write_key(files[1], key)
    return files


def _known_by(address: str) -> x509.SubjectAlternativeName:
    is_name = address[-1:].isalpha()
    known = x509.DNSName(address) if is_name else x509.IPAddress(ipaddress.ip_address(address))
    return x509.SubjectAlternativeName([known])


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _issued(
    subject: x509.Name, key: Any, issuer: x509.Name, issuer_key: Any, extension: x509.ExtensionType
) -> x509.Certificate:
    now = datetime.now(UTC)
    vouches = isinstance(extension, x509.BasicConstraints)
    # Python 3.13 asks an authority for it (RFC 5280, section 4.2.1.9).
    usage = x509.KeyUsage(not vouches, False, False, False, False, vouches, False, False, False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(extension, critical=vouches)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(identifier, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def _write(file: Path, certificate: x509.Certificate) -> None:
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _write_key(file: Path, key: Any) -> None:
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
