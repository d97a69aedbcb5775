"""The directory of a month."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from uploader.storage.local.directories import month_path


@pytest.mark.parametrize(
    ("moment", "path"),
    [
        (datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC), "2026/11"),
        (datetime(2026, 12, 1, tzinfo=UTC), "2026/12"),
        (datetime(2027, 1, 1, tzinfo=UTC), "2027/01"),
        (datetime(202, 5, 1, tzinfo=UTC), "0202/05"),
        (datetime(2027, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))), "2026/12"),
    ],
)
def test_a_month_of_utc_has_its_directory(moment: datetime, path: str) -> None:
    assert month_path(moment) == path
