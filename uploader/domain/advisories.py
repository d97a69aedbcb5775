"""The known faults of what the server stands on, as a list: which versions have them, and where to read of each.

Only what an upgrade ends is here. What this server works around is not: the lost connections of redis-py 8.1.0 (its issue
4252) are those of RESP3, and it speaks RESP2.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date

from uploader.domain.diagnosis import Diagnosis, Subject, note, warning

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Advisory:
    # As `importlib.metadata` has it; or SQLite, Redis, Valkey.
    package: str
    # Pairs: the first version that has the fault, and the one that has it no more.
    faulty: tuple[tuple[str, str], ...]
    about: str
    reference: str
    # A distribution may have mended it without a new version: so it is a note.
    is_backported: bool = False

    def fixed_in(self, version: str) -> str | None:
        """Return the version to upgrade to; None if this one is without the fault."""
        have = parse_version(version)
        return next((end for begin, end in self.faulty if parse_version(begin) <= have < parse_version(end)), None)


_GHSA = "https://github.com/advisories/"

ADVISORIES = (
    Advisory(
        "asyncmy",
        (("0", "0.2.12"),),
        "CVE-2025-65896: SQL is injected by the keys of a dictionary",
        f"{_GHSA}GHSA-qhqw-rrw9-25rm",
    ),
    Advisory(
        "cryptography",
        (("0", "46.0.5"),),
        "CVE-2026-26007: keys on binary curves leak bits of a private key",
        f"{_GHSA}GHSA-r6ph-v2qm-q3c2",
    ),
    Advisory(
        "cryptography",
        (("45.0.0", "46.0.7"),),
        "CVE-2026-39892: a buffer that is not contiguous overflows",
        "https://nvd.nist.gov/vuln/detail/CVE-2026-39892",
    ),
    Advisory(
        "pyjwt",
        (("0", "2.12.0"),),
        "CVE-2026-32597: an unknown `crit` header is not refused",
        f"{_GHSA}GHSA-752w-5fwx-jx9f",
    ),
    Advisory(
        "redis",
        (("4.2.0", "4.4.4"), ("4.5.0", "4.5.4")),
        "CVE-2023-28859: after a cancelled command the reply goes to the next caller",
        f"{_GHSA}GHSA-8fww-64cx-x8p5",
    ),
    Advisory(
        "starlette",
        (("0.39.0", "0.49.1"),),
        "CVE-2025-62727: a `Range` header takes quadratic time",
        f"{_GHSA}GHSA-7f5h-v6xp-fcq8",
    ),
    Advisory(
        "starlette",
        (("0", "1.0.1"),),
        "CVE-2026-48710: a malformed `Host` header changes the path of a request",
        f"{_GHSA}GHSA-86qp-5c8j-p5mr",
    ),
    Advisory(
        "urllib3",
        (("1.24", "2.6.0"),),
        "CVE-2025-66418: a server makes its client unpack without end",
        "https://nvd.nist.gov/vuln/detail/CVE-2025-66418",
    ),
    Advisory(
        "urllib3",
        (("1.22", "2.6.3"),),
        "CVE-2026-21441: a redirect is unpacked whole",
        f"{_GHSA}GHSA-38jv-5279-wg99",
    ),
    # Two connections that write and checkpoint at the same moment: as those of two processes of this server may.
    Advisory(
        "SQLite",
        (("3.7.0", "3.44.6"), ("3.45.0", "3.50.7"), ("3.51.0", "3.51.3")),
        "the WAL-reset bug: a commit at the moment of a checkpoint may damage the database",
        "https://sqlite.org/wal.html#walresetbug",
        is_backported=True,
    ),
    Advisory(
        "Redis",
        (("0", "7.2.11"), ("7.4.0", "7.4.6"), ("8.0.0", "8.0.4"), ("8.2.0", "8.2.2")),
        "CVE-2025-49844: whoever may run a script runs code of their own",
        f"{_GHSA}GHSA-4789-qfc9-5f9q",
        is_backported=True,
    ),
    Advisory(
        "Valkey",
        (("0", "7.2.14"), ("8.0.0", "8.0.10"), ("8.1.0", "8.1.9"), ("9.0.0", "9.0.5"), ("9.1.0", "9.1.1")),
        "CVE-2026-56684, CVE-2026-63639: a client over TLS, or a damaged file, runs code of its own",
        "https://github.com/valkey-io/valkey/releases/tag/9.1.1",
        is_backported=True,
    ),
)

# The day after which its makers mend nothing any more; a distribution may.
ENDS = {
    ("Python", "3.11"): date(2027, 10, 31),
    ("Python", "3.12"): date(2028, 10, 31),
    ("Python", "3.13"): date(2029, 10, 31),
    ("Python", "3.14"): date(2030, 10, 31),
    ("OpenSSL", "1.1"): date(2023, 9, 11),
    ("OpenSSL", "3.0"): date(2026, 9, 7),
    ("OpenSSL", "3.1"): date(2025, 3, 14),
    ("OpenSSL", "3.2"): date(2025, 11, 23),
    ("OpenSSL", "3.3"): date(2026, 4, 9),
    ("OpenSSL", "3.4"): date(2026, 10, 22),
    ("OpenSSL", "3.5"): date(2030, 4, 8),
}


def parse_version(text: str) -> Version:
    """Return the numbers at its beginning, without zeros at their end; what follows them, as in `1.2.post1`, is nothing."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def diagnoses_of(versions: Mapping[str, str], today: date) -> Iterator[Diagnosis]:
    """Tell the known faults of these packages, by their names and versions."""
    for advisory in ADVISORIES:
        version = versions.get(advisory.package)
        fixed = None if version is None else advisory.fixed_in(version)
        if fixed is None:
            continue
        what = f"{advisory.package} {version} has a known fault, {advisory.about}"
        if advisory.is_backported:
            do = f"install {fixed}, unless your distribution has mended it ({advisory.reference})"
            yield note(Subject.LIBRARIES, what, do)
        else:
            yield warning(Subject.LIBRARIES, what, f"install {fixed} or newer ({advisory.reference})")
    for (package, series), end in ENDS.items():
        if today > end and versions.get(package, "").startswith(f"{series}."):
            what = f"{package} {series} is mended by its makers no more, since {end}"
            yield note(Subject.LIBRARIES, what, "install a newer one, unless your distribution mends it")
