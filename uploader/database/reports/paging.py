"""Pages of sorted lists. A page begins after a row, not after a number of rows, so what changes before it moves nothing."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, or_


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Which part of a list, in which order: at most `limit` rows after the pair (value of `sort`, id) `after`."""

    sort: str
    descending: bool
    limit: int
    after: tuple[Any, str] | None

    def of(self, query: "Select[Any]", key: ColumnElement[Any], identifier: ColumnElement[str]) -> "Select[Any]":
        """The part of `query`, sorted by `key` and then by `identifier`."""
        beyond = self.beyond(key, identifier)
        return self.ordered(query if beyond is None else query.where(beyond), key, identifier)

    def beyond(self, key: ColumnElement[Any], identifier: ColumnElement[str]) -> ColumnElement[bool] | None:
        """What the rows after `after` have in common."""
        if self.after is None:
            return None
        value, last = self.after
        return or_(key < value if self.descending else key > value, and_(key == value, identifier > last))

    def ordered(self, query: "Select[Any]", key: ColumnElement[Any], identifier: ColumnElement[str]) -> "Select[Any]":
        return query.order_by(key.desc() if self.descending else key.asc(), identifier.asc()).limit(self.limit)
