"""An installation that has grown for years, as rows: MariaDB makes them itself, the same ones every time."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import text

from uploader.database.engine import Database

_INSERTED_AT_ONCE = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much there is, and how often each report is asked for."""

    users: int
    files: int
    open_uploads: int
    closed_uploads: int
    days: int
    rounds: int


FULL = Scale(users=100_000, files=1_000_000, open_uploads=20_000, closed_uploads=200_000, days=730, rounds=7)
QUICK = Scale(users=10_000, files=100_000, open_uploads=2000, closed_uploads=20_000, days=400, rounds=3)
# So small that it says nothing, for the test that the benchmark runs.
TINY = Scale(users=50, files=500, open_uploads=20, closed_uploads=20, days=40, rounds=1)

# Sequences are tables that MariaDB has of itself. A few users have most of the files; two files in five are of a content
# that others have, too.
_FILES = """
INSERT INTO file (id, user_id, md5, sha256, name, size, instant, created_at)
SELECT CONCAT(LPAD(LOWER(HEX(seq)), 14, '0'), LEFT(MD5(seq), 18)),
  CONCAT('user', LPAD(FLOOR({users} * POW(CRC32(seq) / 4294967296, 2)), 6, '0')),
  MD5(content), SHA2(content, 256), CONCAT('folder/file-', seq, '.bin'), 1000 + CRC32(content) % 50000000, seq <> content,
  :now - INTERVAL seq % 700 DAY
FROM (SELECT seq, IF(seq % 5 < 2, -(seq % {shared}), seq) AS content FROM seq_{first}_to_{last}) AS made
"""
_BLOBS = """
INSERT INTO `blob` (sha256, md5, size, refs, created_at)
SELECT sha256, MIN(md5), MIN(size), COUNT(*), MIN(created_at) FROM file GROUP BY sha256
"""
_UPLOADS = """
INSERT INTO upload
  (id, user_id, md5, name, size, chunk_size, flushed_bytes, state, temp_path, created_at, updated_at, closed_at, open_flag)
SELECT CONCAT('{kind}', LPAD(LOWER(HEX(seq)), 13, '0'), LEFT(MD5(seq), 18)),
  CONCAT('user', LPAD(seq % {users}, 6, '0')), MD5(CONCAT('upload', seq)), CONCAT('folder/upload-', seq, '.bin'),
  100000000, 8388608, 1000000 * (seq % 100), '{state}',
  CONCAT('temp/', DATE_FORMAT(:now - INTERVAL seq % 360 DAY, '%Y/%m'), '/', MD5(seq)),
  :now - INTERVAL seq % 360 DAY, :now - INTERVAL seq % 300 DAY, {closed_at}, {open_flag}
FROM seq_0_to_{last}
"""
_USERS = """
INSERT INTO user_info (user_id, total_space, use_space_finished, use_space_unfinished, reserved, files)
SELECT CONCAT('user', LPAD(seq, 6, '0')), 1 << 40, COALESCE(finished, 0), COALESCE(unfinished, 0), COALESCE(reserved, 0),
  COALESCE(made, 0) + COALESCE(opened, 0)
FROM seq_0_to_{last}
LEFT JOIN (SELECT user_id, SUM(size) AS finished, COUNT(*) AS made FROM file GROUP BY user_id) AS files
  ON files.user_id = CONCAT('user', LPAD(seq, 6, '0'))
LEFT JOIN (
  SELECT user_id, SUM(flushed_bytes) AS unfinished, SUM(size) AS reserved, COUNT(*) AS opened
  FROM upload WHERE open_flag = 1 GROUP BY user_id
) AS uploads ON uploads.user_id = CONCAT('user', LPAD(seq, 6, '0'))
"""
_DAYS = """
INSERT INTO usage_daily (day, taken_at, physical_bytes, use_space_finished, logical_bytes)
SELECT :today - INTERVAL seq DAY, :now - INTERVAL seq DAY, 1000000000 * (1000 - seq), 2000000000 * (1000 - seq), 0
FROM seq_1_to_{days}
"""


async def fill(database: Database, scale: Scale) -> None:
    """Make all rows; figures are those that the transactions of the product would have left."""
    for first in range(1, scale.files + 1, _INSERTED_AT_ONCE):
        last = min(first + _INSERTED_AT_ONCE - 1, scale.files)
        await _run(database, _FILES.format(users=scale.users, shared=scale.files // 20, first=first, last=last))
    await _run(database, _BLOBS)
    for kind, state, count, closed_at, open_flag in (
        ("a", "OPEN", scale.open_uploads, "NULL", "1"),
        ("b", "DONE", scale.closed_uploads, ":now", "NULL"),
    ):
        facts = {"kind": kind, "state": state, "closed_at": closed_at, "open_flag": open_flag}
        await _run(database, _UPLOADS.format(users=scale.users, last=count - 1, **facts))
    await _run(database, _USERS.format(last=scale.users - 1))
    await _run(database, _DAYS.format(days=scale.days))
    # What MariaDB does by itself, sooner or later.
    await _run(database, "ANALYZE TABLE user_info, upload, `blob`, file")


async def _run(database: Database, statement: str) -> None:
    now = datetime.now(UTC).replace(tzinfo=None, microsecond=0) - timedelta(hours=2)
    async with database.engine.begin() as connection:
        await connection.execute(text(statement), {"now": now, "today": now.date()})
