"""The months that temp directories are kept under: `YYYY/MM`, in UTC."""

from datetime import UTC, datetime


def month_path(moment: datetime) -> str:
    """The directory of the month that `moment` lies in, such as `2026/11`."""
    return moment.astimezone(UTC).strftime("%Y/%m")
