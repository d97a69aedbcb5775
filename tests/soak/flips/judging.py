"""Says of each flip whether it was named or healed, and of each trouble whether its user was one that was hit."""

from dataclasses import dataclass, field, fields
from typing import Any

from tests.soak.clients import Trouble
from tests.soak.flips.flipping import STOPPED, Flip
from tests.soak.flips.installation import is_one_line

OWNER = "owner"
# What was in these columns nothing else tells, if what is there now is a value that could be (docs/repair.md).
NOWHERE_ELSE = frozenset(
    {
        *("user_info.total_space", "file.created_at", "file.instant", "upload.name", "upload.sha256"),
        *("upload.created_at", "token.admin", "token.created_at", "token.revoked_at", "meta.value"),
        *("token.scope", "token.made_by", "trail.token_made_by"),
    }
)
NOT_TELLABLE = "plausible, and repeated by nothing"


@dataclass
class Looks:
    """What the two commands said after some flips."""

    damaged: list[dict[str, Any]] = field(default_factory=list)
    drifts: list[dict[str, Any]] = field(default_factory=list)
    # Why they did not come to their end, by their names.
    failed: dict[str, str] = field(default_factory=dict)


@dataclass
class Verdict:
    """What is wrong with some flips; nothing, if all lists are empty."""

    wrong_bytes: list[str] = field(default_factory=list)
    harmed: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    # Nothing is wrong with these: nobody could have named them.
    not_tellable: list[str] = field(default_factory=list)

    def add(self, other: "Verdict") -> None:
        for each in fields(self):
            getattr(self, each.name).extend(getattr(other, each.name))


def judge(flips: list[Flip], troubles: list[Trouble], looks: Looks, md5s: dict[str, str]) -> Verdict:
    """Note what became of each flip, too. `md5s`: of the contents by SHA-256."""
    for flip in flips:
        own = [trouble for trouble in troubles if _is_of(trouble, flip, md5s)]
        flip.troubles = sorted({trouble.what for trouble in own})
        flip.outcome = _outcome(flip, looks, own)
    wrong = [trouble for trouble in troubles if trouble.wrong_bytes]
    harmed = [trouble for trouble in troubles if not _is_excused(trouble, flips, md5s)]
    after = "; ".join(map(str, flips))

    def told(trouble: Trouble) -> str:
        own = [str(flip) for flip in flips if _is_of(trouble, flip, md5s)]
        return f"{trouble}, after {'; '.join(own) or after}"

    def with_outcome(outcome: str) -> list[str]:
        return [f"{flip}: {', '.join(flip.troubles)}" for flip in flips if flip.outcome == outcome]

    return Verdict(
        wrong_bytes=[told(trouble) for trouble in wrong],
        harmed=[told(trouble) for trouble in harmed] + _unexplained(flips, looks),
        unnamed=with_outcome("unnamed"),
        not_tellable=with_outcome(NOT_TELLABLE),
        failed=[f"{name}: {why}, after {after}" for name, why in looks.failed.items() if not is_one_line(why)],
    )


def _is_excused(trouble: Trouble, flips: list[Flip], md5s: dict[str, str]) -> bool:
    """Whether a user was hit, or a content. What only an administrator is refused needs a table whole: to be told why is
    enough."""
    if trouble.user_id == OWNER:
        return any(flip.kind in STOPPED and flip.outcome.startswith("named") for flip in flips)
    if any(trouble.user_id in flip.users for flip in flips):
        return True
    return trouble.md5 is not None and trouble.md5 in {md5s.get(flip.sha256 or "") for flip in flips}


def _unexplained(flips: list[Flip], looks: Looks) -> list[str]:
    """Drifts of what was not hit; after a flip in the database or in Redis any may be its consequence."""
    if any(flip.kind in STOPPED for flip in flips):
        return []
    hit = {name for flip in flips for name in (flip.upload_id, flip.sha256, *flip.users)}
    return [f"a drift that no flip explains: {drift}" for drift in looks.drifts if drift["subject"] not in hit]


def _outcome(flip: Flip, looks: Looks, troubles: list[Trouble]) -> str:
    if any(damage["sha256"] == flip.sha256 for damage in looks.damaged):
        return "named by scrub"
    subjects = {flip.upload_id, flip.sha256}
    if any(flip.kind in STOPPED or drift["subject"] in subjects for drift in looks.drifts):
        return "named by reconcile"
    if flip.kind in STOPPED and looks.damaged:
        return "named by scrub"
    named = [name for name, why in looks.failed.items() if flip.kind in STOPPED and is_one_line(why)]
    if named:
        return f"named by {' and '.join(named)}"
    if not troubles:
        return "without effect"
    if not any(trouble.scrubbed for trouble in troubles):
        return "healed"
    return NOT_TELLABLE if flip.columns and NOWHERE_ELSE.issuperset(flip.columns) else "unnamed"


def _is_of(trouble: Trouble, flip: Flip, md5s: dict[str, str]) -> bool:
    """A content's flip is that content's; another one may be anything of its users, or of anybody."""
    if flip.sha256 is not None:
        return trouble.md5 == md5s.get(flip.sha256)
    return trouble.user_id in flip.users or not flip.users
