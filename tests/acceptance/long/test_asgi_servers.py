"""An application of docs/examples under the servers of others."""

from pathlib import Path

import pytest

from tests.support.embedding import check_a_file_comes_and_goes, check_it_ends, running


@pytest.mark.parametrize("server", ["hypercorn", "granian"])
def test_under_other_servers_of_asgi(tmp_path: Path, server: str) -> None:
    with running(tmp_path, server) as app:
        check_a_file_comes_and_goes(app, has_handler=True)
        check_it_ends(app)
