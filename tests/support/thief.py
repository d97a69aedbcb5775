"""A thief who has a copy of a database, or of a backup, and knows the code: what opens something is found in it, or derived.

Everything that is there is tried as a slug, as a token, as a secret, and as the secret of versions before 0.3.0.
"""

import base64
import gzip
import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sqlalchemy import text

from uploader.database import models
from uploader.database.engine import Database
from uploader.domain.secret import SEALED, Secret, Use

_WORD = re.compile(rb"[A-Za-z0-9_.~=-]{8,}")


@dataclass(frozen=True, slots=True)
class Loot:
    """All that opens something here: slugs of links by their ids, tokens, and a signed URL of a file, by its user."""

    slugs: dict[str, str]
    tokens: list[str]
    url: str
    user_id: str


async def words_of_rows(database: Database) -> set[bytes]:
    """Every value of every column of every table, and the words in each."""
    found: set[bytes] = set()
    async with database.engine.connect() as connection:
        for table in models.metadata.sorted_tables:
            for row in await connection.execute(text(f"SELECT * FROM `{table.name}`")):
                found.update(_words(_raw(value) for value in row))
    return found


def _raw(value: Any) -> bytes:
    return bytes(value) if isinstance(value, bytes) else str(value).encode()


def words_of_files(*paths: Path) -> set[bytes]:
    """The words in the bytes of files, and of all files below directories; unpacked where they are packed."""
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    return _words(gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes() for file in files)


def _words(texts: Iterable[bytes]) -> set[bytes]:
    return {word for each in texts for word in (each[:4096], *_WORD.findall(each))}


def opened_by(words: set[bytes], loot: Loot) -> list[str]:
    """What a thief of these words opens."""
    found = []
    for word in words:
        candidate = word.decode(errors="surrogateescape")
        found += [f"{slug} is there" for slug in loot.slugs.values() if slug in candidate]
        found += [f"{token} is there" for token in loot.tokens if token in candidate]
        found += _derived(candidate, words, loot)
    return found


def _derived(candidate: str, words: set[bytes], loot: Loot) -> list[str]:
    if not 16 <= len(candidate) <= 200 or not candidate.isprintable():
        return []
    found, query, path = [], parse_qs(urlsplit(loot.url).query), urlsplit(loot.url).path
    subject, signature = ("file", path.split("/")[3]), query["signature"][0]
    message = f"uploader/link/1\n{loot.user_id}\n{subject[1]}\n{query['expires'][0]}".encode()
    if hmac.new(candidate.encode(), message, hashlib.sha256).hexdigest() == signature:
        found.append(f"{candidate} signs as before")
    secret = Secret(candidate)
    if secret.sign(Use.SIGNED_URL, loot.user_id, *subject, query["expires"][0]) == signature:
        found.append(f"{candidate} signs")
    found += [f"{candidate} gives {slug}" for link_id, slug in loot.slugs.items() if secret.slug(link_id) == slug]
    for sealed in (word.decode() for word in words if word.startswith(SEALED.encode())):
        found += [
            f"{candidate} opens {sealed}"
            for link_id in loot.slugs
            if secret.open_sealed(Use.SLUG_STORE, sealed, link_id) or secret.open_sealed(Use.FORMER, sealed)
        ]
    for digest in (hashlib.sha256, hashlib.md5):
        hashed = base64.urlsafe_b64encode(digest(candidate.encode()).digest()[:18]).decode()
        found += [f"{candidate} hashes to {slug}" for slug in loot.slugs.values() if slug == hashed]
    return found
