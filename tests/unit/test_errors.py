"""Every error has a code and a message."""

import pytest

from uploader import errors
from uploader.errors import UploaderError, message_of


def below(error: type[UploaderError]) -> list[type[UploaderError]]:
    return [error, *(each for child in error.__subclasses__() for each in below(child))]


ALL = [error for error in below(UploaderError) if error.__module__ == errors.__name__]
# Two that group others, one that never reaches a client, and those that are to a client what their parent is.
WITHOUT_CODE = {
    *("DatabaseDamaged", "LengthExceeded", "ConfigurationError", "Conflict", "Refused", "StorageAway"),
    *("StorageFailed", "StorageTooSmall", "Unverified", "UploadBusy"),
}
RETRYABLE = {"body-timeout", "digest-mismatch", "storage-full", "too-many-requests", "too-many-uploads", "unavailable"}


def test_every_error_has_a_code_of_its_own_except_those_that_only_group() -> None:
    own = {error.__name__: error.code for error in ALL if error.__name__ not in WITHOUT_CODE}
    assert len(set(own.values())) == len(own)
    assert {error.code for error in ALL} == set(own.values())
    codes = [own[name] for name in ("InvalidMd5", "NotAllowed", "Sha256Conflict")]
    assert codes == ["invalid-md5", "refused", "sha256-conflict"], "a code is the name of its error"
    assert {error.code for error in ALL if error.retryable} == RETRYABLE


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_the_first_line_of_the_docstring_is_the_message(error: type[UploaderError]) -> None:
    raised = error()
    assert raised.detail == str(raised) == message_of(error)
    assert raised.detail.endswith((".", "`."))


def test_a_precise_detail_and_fields_are_kept() -> None:
    error = errors.FileTooLarge("Too large by far.", limit=5)
    assert (error.detail, str(error), error.fields) == ("Too large by far.", "Too large by far.", {"limit": 5})
    bad = errors.InvalidRequest.field("size", "is missing")
    assert (bad.detail, bad.fields["errors"]) == ("size: is missing", [{"field": "size", "reason": "is missing"}])
