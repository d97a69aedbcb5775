"""tmp"""

from tests.conftest import MakeStack
from tests.support.content import KIB, Content


async def test_upload(make_stack_on: MakeStack) -> None:
    async with make_stack_on() as stack:
        content = Content(200 * KIB)
        response = await stack.upload(content)
        assert response.status_code == 201
        file = response.json()["file"]
        assert (await stack.client.get(f"/me/files/{file['id']}/content")).content == content.data
        assert await stack.usage("alice") == {"finished": content.size, "unfinished": 0, "reserved": 0}
