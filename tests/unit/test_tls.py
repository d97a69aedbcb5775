"""The files of a certificate and its key: what is wrong with them is told with the setting, the file and the reason."""

import logging
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from tests.support.certificates import self_signed
from uploader.errors import ConfigurationError
from uploader.http.server.tls import read_certificate
from uploader.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    certificate, key = self_signed(tmp_path, "127.0.0.1")
    return Settings(tls_certificate=certificate, tls_key=key)


def key_of(directory: Path, password: bytes | None = None) -> bytes:
    """Another one."""
    directory.mkdir(exist_ok=True)
    key = self_signed(directory, "127.0.0.1")[1].read_bytes()
    if password is None:
        return key
    how = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(password)
    return serialization.load_pem_private_key(key, None).private_bytes(serialization.Encoding.PEM, *how)


def problem_of(settings: Settings) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_certificate(settings)
    return caught.value.detail


def test_each_fault_is_told_with_its_setting_and_its_file(settings: Settings, tmp_path: Path) -> None:
    certificate, key = settings.tls_certificate, settings.tls_key
    assert certificate is not None
    assert key is not None
    context = read_certificate(settings).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    right, other = key.read_bytes(), tmp_path / "other"
    for content, what in (
        (key_of(other), f"is not the key of {certificate}"),
        (key_of(other, b"secret"), "is no key in PEM without a password"),
        (b"none", "is no key in PEM without a password"),
    ):
        key.write_bytes(content)
        assert problem_of(settings) == f"UPLOADER_TLS_KEY: {key}: {what}"
    key.unlink()
    assert problem_of(settings) == f"UPLOADER_TLS_KEY: {key}: No such file or directory"
    key.write_bytes(right)
    certificate.write_bytes(right)
    assert problem_of(settings) == f"UPLOADER_TLS_CERTIFICATE: {certificate}: is not a certificate in PEM"
    certificate.unlink()
    certificate.mkdir()
    assert problem_of(settings) == f"UPLOADER_TLS_CERTIFICATE: {certificate}: Is a directory"


def test_one_that_is_not_valid_is_told_of(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    found, now = read_certificate(settings), datetime.now(UTC)
    found.warn_unless_valid(now)
    assert caplog.records == []
    for days in (-2, 2):
        found.warn_unless_valid(now + timedelta(days=days))
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.WARNING]
