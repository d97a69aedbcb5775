"""Three hundred names: each is refused with a reason, or comes back as it was sent, in NFC, everywhere it is shown."""

import re
import unicodedata
from urllib.parse import quote

from tests.conftest import MakeStack
from tests.integration.file_names import INVALID_NAMES, VALID_NAMES
from uploader.domain.digest import EMPTY_MD5
from uploader.domain.names import normalise_name
from uploader.http.native.download import disposition


def test_there_are_three_hundred_and_none_twice() -> None:
    names = [*INVALID_NAMES, *VALID_NAMES]
    assert len(names) >= 300
    assert len(set(names)) == len(names)


async def test_an_invalid_name_is_refused_and_a_valid_one_comes_back_as_it_was_sent(make_stack: MakeStack) -> None:
    async with make_stack(durability="process") as stack:
        client = stack.client
        file = (await client.post(f"/files/{EMPTY_MD5}", json={"name": "first", "size": 0})).json()["file"]
        for name in INVALID_NAMES:
            for method, path, body in (
                ("POST", f"/files/{EMPTY_MD5}", {"name": name, "size": 0}),
                ("PATCH", f"/me/files/{file['id']}", {"name": name}),
            ):
                response = await client.request(method, path, json=body)
                assert (response.status_code, response.json()["code"]) == (422, "invalid-request"), repr(name)
                (error,) = response.json()["errors"]
                assert error["field"] == "name", repr(name)
                assert error["reason"], repr(name)
        assert [each["name"] for each in (await client.get("/me/files")).json()["files"]] == ["first"]
        expected = [unicodedata.normalize("NFC", name) for name in VALID_NAMES]
        for name, kept in zip(VALID_NAMES, expected, strict=True):
            response = await client.post(f"/files/{EMPTY_MD5}", json={"name": name, "size": 0})
            assert response.status_code in (200, 201), f"{name!r}: {response.text}"
            assert response.json()["file"]["name"] == kept
            (listed,) = (await client.get("/me/files", params={"prefix": kept})).json()["files"]
            assert listed["name"] == kept
            # Others of them are in the way of this one, or it in theirs.
            await client.delete("/me/files", params={"prefix": kept.split("/")[0]})


def test_a_download_is_named_by_the_last_segment() -> None:
    for name in map(normalise_name, VALID_NAMES):
        header = disposition(name)
        assert header.isascii()
        assert header.isprintable()
        match = re.fullmatch(r"attachment; filename=\"([^\"\\%]*)\"; filename\*=UTF-8''([A-Za-z0-9%._~-]+)", header)
        assert match
        assert match[2] == quote(name.rpartition("/")[2], safe="")
