"""The tree of errors is the one that its page draws, and every error has a code and a message."""

import pytest

from uploader import errors
from uploader.errors import UploaderError, message_of


def tree_of(error: type[UploaderError], depth: int = 0) -> list[tuple[int, str]]:
    """Depth and name of an error and all below it, in the order they are defined."""
    children = [child for child in error.__subclasses__() if child.__module__ == errors.__name__]
    return [(depth, error.__name__), *(line for child in children for line in tree_of(child, depth + 1))]


def drawn_tree() -> list[tuple[int, str]]:
    lines = [line.rstrip() for line in (errors.__doc__ or "").splitlines() if line.strip()]
    drawing = lines[lines.index("UploaderError") :]
    depths = [(len(line) - len(line.lstrip("│├└─ "))) // 4 for line in drawing]
    return [
        (depth, name) for depth, line in zip(depths, drawing, strict=True) for name in line.lstrip("│├└─ ").split(", ")
    ]


ALL = [getattr(errors, name) for _, name in tree_of(UploaderError)]
# Two that group others, one that never reaches a client, and those that are to a client what their parent is.
WITHOUT_CODE = {
    "DatabaseDamaged",
    "LengthExceeded",
    "ConfigurationError",
    "Conflict",
    "Refused",
    "StorageAway",
    "StorageFailed",
    "StorageTooSmall",
    "Unverified",
    "UploadBusy",
}
RETRYABLE = {
    "body-timeout",
    "digest-mismatch",
    "storage-full",
    "too-many-requests",
    "too-many-uploads",
    "unavailable",
}


def test_the_drawing_names_every_error_once_under_its_parent() -> None:
    def parents(tree: list[tuple[int, str]]) -> dict[str, str]:
        path: list[str] = []
        found = {}
        for depth, name in tree:
            del path[depth:]
            assert name not in found
            found[name] = path[-1] if path else ""
            path.append(name)
        return found

    assert parents(drawn_tree()) == parents(tree_of(UploaderError))


def test_every_error_has_a_code_of_its_own_except_those_that_only_group() -> None:
    own = {error.__name__: error.code for error in ALL if "code" in vars(error)}
    assert {error.__name__ for error in ALL} - set(own) == WITHOUT_CODE
    assert len(set(own.values())) == len(own)


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_the_first_line_of_the_docstring_is_the_message(error: type[UploaderError]) -> None:
    raised = error()
    assert raised.detail == str(raised) == message_of(error)
    assert raised.detail.endswith((".", "`."))


def test_a_precise_detail_and_fields_are_kept() -> None:
    error = errors.FileTooLarge("Too large by far.", limit=5)
    assert (error.detail, str(error), error.fields) == ("Too large by far.", "Too large by far.", {"limit": 5})


def test_a_bad_field_is_named_in_the_detail_and_in_the_list() -> None:
    error = errors.InvalidRequest.field("size", "is missing")
    assert error.detail == "size: is missing"
    assert error.fields == {"errors": [{"field": "size", "reason": "is missing"}]}


def test_only_what_may_pass_by_itself_is_retryable() -> None:
    assert {error.code for error in ALL if error.retryable} == RETRYABLE
