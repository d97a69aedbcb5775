"""The secret of an installation: what derives from it, and that each message that is signed has one reading."""

import ast
from itertools import combinations
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

import uploader
from uploader.domain.secret import Secret, Use, message_of

SECRET, OTHER = Secret("a" * 32), Secret("b" * 32)
# Where something is hashed or signed that is put together of several values, and why it has one reading all the same.
PUT_TOGETHER = {
    "client/plan.py": "a name, a decimal number, and a digest of fixed length: read from its end",
    "domain/digest.py": "the message of API.md: no user id has a line feed, the rest is hexadecimal and decimal",
    "domain/names.py": "JSON",
    "domain/secret.py": "JSON",
    "domain/upload.py": "ids of fixed length",
    "service/signed_urls.py": "a key and a nonce of fixed length; and what versions before 0.3.0 signed, without line feeds",
    "sinks/configuration.py": "Standard Webhooks: an id and a decimal number have no full stop",
    "storage/backups.py": "JSON",
}
TEXTS = st.text(st.characters(), max_size=4) | st.sampled_from(["", "\n", '"', '", "', "/", "a\n1", "1"])


@pytest.mark.parametrize("length", [32, 64])
def test_keys_are_those_of_rfc_5869(length: int) -> None:
    for use in Use:
        standard = HKDF(SHA256(), length, b"uploader/secret/1", use.encode())
        assert SECRET.key(use, length) == standard.derive(b"a" * 32)


def test_each_use_of_each_secret_has_a_key_of_its_own() -> None:
    keys = [secret.key(use) for secret in (SECRET, OTHER) for use in Use]
    assert all(one != other for one, other in combinations(keys, 2))
    assert "aaaa" not in repr(SECRET)


@given(st.lists(TEXTS, max_size=4), st.lists(TEXTS, max_size=4))
def test_different_fields_make_different_messages(one: list[str], other: list[str]) -> None:
    assert (message_of(*one) == message_of(*other)) is (one == other)


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_sealed_text_opens_by_its_secret_its_use_and_its_context_alone(text: str, context: str) -> None:
    sealed = SECRET.seal(Use.SLUG_STORE, text, context)
    assert SECRET.open_sealed(Use.SLUG_STORE, sealed, context) == text
    assert SECRET.open_sealed(Use.SLUG_STORE, sealed, f"{context}x") is None
    assert SECRET.open_sealed(Use.FORMER, sealed, context) is None
    assert OTHER.open_sealed(Use.SLUG_STORE, sealed, context) is None
    for damaged in (sealed[:-1], f"{sealed}AAAA", "1.é", "1.", ""):
        assert SECRET.open_sealed(Use.SLUG_STORE, damaged, context) is None


def test_a_slug_has_144_bits_of_its_link_and_its_secret() -> None:
    slugs = {secret.slug(link_id) for secret in (SECRET, OTHER) for link_id in ("0" * 32, "1" * 32)}
    assert len(slugs) == 4
    assert {len(slug) for slug in slugs} == {24}
    # A sealed one of earlier versions fits into the same column.
    assert len(SECRET.seal(Use.SLUG_STORE, slugs.pop(), "0" * 32)) <= 64


def test_all_that_is_hashed_of_several_values_is_known_and_one_function_signs() -> None:
    """A separator that a value may contain gives a signature two readings: who adds a place says here why it has one."""
    package, put_together, signing = Path(uploader.__file__).parent, set(), set()
    for path in package.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            module, name = getattr(call.func.value, "id", None), call.func.attr
            where = str(path.relative_to(package))
            if module == "hmac" and name in ("new", "digest"):
                signing.add(where)
            is_hash = module == "hashlib" and name in ("sha256", "md5", "blake2b", "shake_256", "new")
            if (is_hash or (module == "hmac" and name != "compare_digest")) and any(map(_joins, call.args)):
                put_together.add(where)
    assert signing == {"domain/digest.py", "domain/secret.py", "service/signed_urls.py", "sinks/configuration.py"}
    assert put_together <= set(PUT_TOGETHER)
    assert {"domain/secret.py", "domain/names.py", "domain/upload.py"} <= put_together


def _joins(argument: ast.expr) -> bool:
    """Whether an argument is put together on the spot, or by another name than a plain value has."""
    if isinstance(argument, ast.JoinedStr | ast.BinOp | ast.Call):
        return any(
            isinstance(each, ast.JoinedStr | ast.BinOp)
            or (isinstance(each, ast.Call) and getattr(each.func, "attr", getattr(each.func, "id", "")) in _JOINING)
            for each in ast.walk(argument)
        )
    return isinstance(argument, ast.Name) and argument.id in ("message", "facts", "head")


_JOINING = ("join", "dumps", "message_of")
