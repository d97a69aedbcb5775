"""`/metrics` of several server processes and a worker: each answers for all, and no counter falls when one is killed."""

import os
import signal
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.content import KIB, Content
from tests.support.process import (
    Process,
    Server,
    answers,
    client_of_owner,
    ended,
    processes_in,
    run_cli,
    wait_for,
    workers_of,
)
from tests.support.sending import get, put, send

CONTENT = Content(20 * 64 * KIB)


def metrics_of(url: str, token: str) -> dict[str, float]:
    """Every sample, from a connection of its own: it is luck which process takes it."""
    families = text_string_to_metric_families(get(f"{url}/metrics", token).text)
    return {f"{sample.name}{sample.labels or ''}": sample.value for family in families for sample in family.samples}


def test_whichever_process_is_asked_answers_for_all(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = {"DATA": str(data), "QUIET_INTERVAL": "200ms"}
    server = Server(tmp_path / "log", settings, "--workers", "2", "--no-jobs")
    with ended(server):
        scraper = run_cli(settings, "token", "create", "prometheus", "--metrics").stdout.split()[-1]
        worker = Process(tmp_path / "worker.log", settings, "work")
        with ended(worker):
            for number in range(CONTENT.chunk_count - 1):
                with client_of_owner(server.url, data) as client:  # of a connection of its own: to either process
                    (put if number else send)(client, CONTENT, (number,))
            sent = (CONTENT.chunk_count - 1) * CONTENT.chunk_size

            def all_counted() -> bool:
                metrics = metrics_of(server.url, scraper)
                flushed = metrics.get("uploader_flushed_uploads_total", 0)
                return metrics["uploader_received_bytes_total"] == sent and flushed >= 1

            wait_for(all_counted)
            before = first = metrics_of(server.url, scraper)
            for _ in range(10):
                metrics = metrics_of(server.url, scraper)
                assert metrics["uploader_received_bytes_total"] == sent
                assert metrics["uploader_chunks_total{'outcome': 'recorded'}"] == CONTENT.chunk_count - 1
                assert metrics["uploader_chunk_duration_seconds_count"] == CONTENT.chunk_count - 1
                assert metrics["uploader_open_uploads"] == 1
                assert metrics["uploader_free_disk_bytes"] > 0
                assert all(metrics[name] >= value for name, value in before.items() if name.endswith("_total"))
                before = metrics
            assert not any(name.startswith("process_") for name in first)
            killed = workers_of(server)
            assert len(killed) == 2
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not set(killed) & set(workers_of(server)))
            wait_for(lambda: answers(server.port))
            after = metrics_of(server.url, scraper)
            fallen = {name for name, value in before.items() if name.endswith("_total") and after.get(name, 0) < value}
            assert fallen == set()
            assert worker.stop() == 0
        assert server.stop() == 0
    assert processes_in(data / "redis") == []
