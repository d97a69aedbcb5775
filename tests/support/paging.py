"""Lists that come in pages."""

from typing import Any

import httpx2


async def pages(client: httpx2.AsyncClient, path: str, **query: Any) -> list[dict[str, Any]]:
    """All pages, each asked for from where the one before it ended."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["next"] is not None:
        after = {"after": found[-1]["next"]} if found else {}
        response = await client.get(path, params=query | after)
        assert response.status_code == 200, response.text
        found.append(response.json())
    return found
