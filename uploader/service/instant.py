"""Instant upload: finish without bytes if the content exists, and the caller has a file of it or proves to hold it.

A client without a proof can't tell missing content from other users' content, neither by the answer nor by the work
done.
"""

import asyncio
import hmac
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from uploader.accounting.pending import Challenges
from uploader.database import queries, transactions
from uploader.database.engine import Connection, Database, Duplicate
from uploader.database.outbox import gates
from uploader.database.transactions.rows import BlobLost, NotOpen
from uploader.domain.creations import FILE
from uploader.domain.digest import Challenge, draw_ranges, proof_of
from uploader.domain.links import owner
from uploader.domain.upload import File, IfExists, Upload
from uploader.errors import ProofFailed, Unavailable
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.observability import INSTANT_UPLOADS
from uploader.runtime.tasks import uninterrupted
from uploader.service.close import Closers
from uploader.service.heal import Healing
from uploader.service.ids import new_id
from uploader.service.precreate import PreCreateHook, Question
from uploader.service.results import Complete, Opening, Target
from uploader.service.status import ATTEMPTS, PAUSE_SECONDS, Uploads
from uploader.settings import Settings
from uploader.storage.base import BlobBytes, Gone, UploadBytes

_CHALLENGE_SECONDS = 60.0
_NONCE_BYTES = 32

# The existing file that matches, and the SHA-256 of content that may be used without a proof.
Source = tuple[File | None, str | None]
NO_SOURCE: Source = (None, None)


@dataclass(eq=False, repr=False)
class Instant:
    settings: Settings
    database: Database
    storage: UploadBytes
    blobs: BlobBytes
    healing: Healing
    closers: Closers
    uploads: Uploads
    challenges: Challenges
    pre_create_hook: PreCreateHook
    clock: Clock

    async def finish(self, opening: Opening, md5: str, source: Source, existing: Upload | None) -> Complete | None:
        """Return a file if the caller has one of this name and content, or if the content may be used as it is. Close
        `existing`, the caller's open upload of this content. Raises NotOpen, QuotaExceeded, TooManyFiles, NameTaken."""
        same, sha256 = source
        wanted = sha256 if same is None else same.sha256
        # For the visitor who sent a file, a refused file is complete, although its bytes are gone.
        is_sent = same is not None and same.held and bool(opening.caller.session)
        if wanted is None or not (is_sent or await self.healing.is_whole(wanted, opening.size)):
            return None  # sending the content again heals it
        if same is not None:
            if existing is not None and opening.instant:
                with suppress(*([BlobLost] if is_sent else [])):
                    return await self._add_file(opening, md5, same.sha256, existing)
            return Complete(file=same, created=False)
        if not opening.instant:
            return None
        try:
            return await self._add_file(opening, md5, wanted, existing)
        except BlobLost:
            return None  # the blob went at this moment: the bytes have to be sent

    async def source(self, connection: Connection, opening: Opening, md5: str) -> Source:
        """Find an undamaged content to finish from."""
        # A visitor may not learn which contents exist.
        mode = "off" if opening.caller.session else self.settings.instant
        ask = partial(queries.newest_file, connection, opening.caller, md5, size=opening.size, sha256=opening.sha256)
        ask = partial(ask, sound=True)
        own = await ask()
        if own is not None:
            same = own if own.name_for(opening.caller) == opening.name else await ask(name=opening.name)
            same = same or await self._held(connection, opening, md5)
            return same, own.sha256 if same is None and mode != "off" else None
        if (same := await self._held(connection, opening, md5)) is not None:
            return same, None
        if mode != "trust":
            return NO_SOURCE
        blobs = await queries.blobs_by_md5(connection, md5, opening.size)
        fitting = [blob.sha256 for blob in blobs if opening.sha256 in (None, blob.sha256)]
        return None, fitting[0] if fitting else None

    async def _held(self, connection: Connection, opening: Opening, md5: str) -> File | None:
        if not gates(connection):
            return None
        facts = partial(queries.newest_held, md5=md5, size=opening.size, sha256=opening.sha256, name=opening.name)
        return await facts(connection, opening.caller)

    # Proof of possession

    async def challenge(self, opening: Opening, md5: str) -> Challenge | None:
        """Return the challenge by which the caller may finish at once; None if the bytes have to be sent. The same
        statements and script run whether or not the content exists, is offered, or a budget is spent."""
        sha256 = opening.sha256
        eligible = self.settings.instant == "proof" and opening.instant and sha256 is not None
        eligible = eligible and not opening.caller.session
        if not eligible or sha256 is None or opening.size < self.settings.proof_min_size_bytes:
            return None
        blobs = await self.database.read(queries.blobs_by_md5, md5, opening.size, brief=True)
        challenge = Challenge(
            id=secrets.token_hex(16),
            nonce=secrets.token_bytes(_NONCE_BYTES),
            user_id=opening.caller.user_id,
            md5=md5,
            sha256=sha256,
            size=opening.size,
            ranges=draw_ranges(opening.size, self.settings.proof_ranges, secrets.randbelow),
            expires_at=self.clock.now() + timedelta(seconds=_CHALLENGE_SECONDS),
            if_exists=opening.if_exists or IfExists.KEEP,
            modified_at=opening.modified_at,
        )
        (size,) = await self.blobs.blob_sizes([sha256])
        offered = size == opening.size and any(blob.sha256 == sha256 for blob in blobs)
        try:
            issued = await self.challenges.issue(challenge, offered=offered, ttl_seconds=_CHALLENGE_SECONDS)
        except Unavailable:
            return None  # without Redis the challenge can't be kept: the client sends the bytes
        return challenge if issued else None

    async def prove(self, target: Target, name: str, challenge_id: str, proof: bytes) -> Complete:
        """Finish by the answer to a challenge. Raises ProofFailed, QuotaExceeded, TooManyFiles, UploadNotFound,
        UploadGone, Unavailable; after Unavailable the client may send the same answer again."""
        meant: Upload | None = None
        if target.upload_id is not None:
            match await self.uploads.find(target):
                case Upload() as upload:
                    meant = upload
                case complete:
                    return complete
        if target.caller.session:
            raise ProofFailed()
        challenge = await self.challenges.take(target.caller.user_id, challenge_id)
        md5 = target.md5 if meant is None else meant.md5
        if challenge is None or challenge.md5 != md5 or not await self._is_proven(challenge, proof):
            raise ProofFailed()
        await self.challenges.count_as_proven(challenge)
        try:
            return await self._finish_proven(challenge, name, meant)
        except Unavailable:  # the client will try again, with the same proof
            left = challenge.expires_at - self.clock.now()
            await self.challenges.give_back(challenge, left.total_seconds())
            raise

    async def _is_proven(self, challenge: Challenge, proof: bytes) -> bool:
        if challenge.expires_at <= self.clock.now():
            return False
        try:
            contents = await self.blobs.read_blob(challenge.sha256, challenge.ranges)
        except Gone:
            self.healing.examine_once(challenge.sha256)
            return False
        expected = await asyncio.to_thread(proof_of, challenge, contents)
        return hmac.compare_digest(expected, proof)

    async def _finish_proven(self, challenge: Challenge, name: str, meant: Upload | None) -> Complete:
        opening = Opening(
            caller=owner(challenge.user_id),
            md5=challenge.md5,
            sha256=challenge.sha256,
            name=name,
            size=challenge.size,
            if_exists=challenge.if_exists,
            modified_at=challenge.modified_at,
        )
        for _ in range(ATTEMPTS):
            replaced = meant or await self.uploads.by_md5(opening.caller, challenge.md5)
            if replaced is not None and not replaced.may_be(challenge.sha256, challenge.size):
                replaced = None
            try:
                return await self._add_file(opening, challenge.md5, challenge.sha256, replaced, is_proven=True)
            except BlobLost as error:
                raise ProofFailed("The content went at this moment: send the bytes.") from error
            except (Duplicate, Gone, NotOpen):
                await asyncio.sleep(PAUSE_SECONDS)
                meant = None
        raise Unavailable("This upload is changing too fast; try again.")

    # The transaction

    async def _add_file(
        self, opening: Opening, md5: str, sha256: str, replaced: Upload | None, *, is_proven: bool = False
    ) -> Complete:
        if replaced is None or replaced.name != opening.name:  # the hook was asked about an open upload when it began
            question = Question(FILE, opening.caller.user_id, (opening.name,), opening.size, md5, sha256)
            opening = replace(opening, name=(await self.pre_create_hook.ask(question)).name)
        file = File(
            id=new_id(),
            user_id=opening.caller.user_id,
            session=opening.caller.session,
            md5=md5,
            sha256=sha256,
            name=opening.name,
            size=opening.size,
            instant=True,
            created_at=self.clock.now(),
            modified_at=opening.modified_at,
        )
        add = partial(
            transactions.files.add_file,
            file=file,
            if_exists=opening.if_exists or FILE.if_exists,
            replaced_upload_id=None if replaced is None else replaced.id,
            max_files=self.settings.max_files,
            is_proven=is_proven,
        )

        async def commit() -> Complete:
            added = await self.database.transact(add)
            crash_point("instant.after_commit")
            return Complete(file=added.file, created=added.is_new)

        complete = await uninterrupted(self.closers.close_by(replaced, commit))
        INSTANT_UPLOADS.inc()
        return complete
