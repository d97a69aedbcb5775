"""nginx before several servers, by the configuration of docs/scaling.md: what belongs to one upload goes to one of them."""

import re
from collections import Counter
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from tests.support.proxies import running_nginx
from tests.support.servers import free_port

SCALING = Path(__file__).parents[3] / "docs" / "scaling.md"
NODES = ("10.0.0.11:8000", "10.0.0.12:8000")
UPLOADS = 40


@pytest.mark.parametrize("proxy", ["nginx"])
def test_an_upload_stays_on_a_node_and_many_are_spread(proxy: str, tmp_path: Path) -> None:
    (configuration,) = re.findall(rf"```{proxy}\n(.*?)```", SCALING.read_text(), flags=re.DOTALL)
    for node in NODES:
        assert node in configuration
        place = f"127.0.0.1:{free_port()}"
        configuration = configuration.replace(node, place)
        configuration += f'server {{ listen {place}; return 200 "{node}"; }}\n'
    configuration += "server { listen 127.0.0.1:PORT; location / { proxy_pass http://uploader; } }\n"
    with (
        running_nginx(configuration, tmp_path / "nginx") as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        spread: Counter[str] = Counter()
        for form in ("/uploads/{}", "/uploads/{}/chunks/7?id=1", "/resumable/{}", "/files/{}", "/files/{}/chunks/0"):
            for _ in range(UPLOADS):
                path = form.format(uuid4().hex)
                nodes = {client.get(path).text for _ in range(3)}
                assert len(nodes) == 1
                spread.update(nodes)
        assert set(spread) == set(NODES)
        assert min(spread.values()) > UPLOADS
        assert {client.get("/me/usage").text for _ in range(40)} == set(NODES)
        upload = uuid4().hex
        assert client.get(f"/uploads/{upload}").text == client.put(f"/uploads/{upload}/chunks/3").text
