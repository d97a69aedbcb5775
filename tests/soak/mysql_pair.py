"""Two MySQL with semi-synchronous replication: what is committed on the primary is at its replica, so that a failover loses
nothing."""

import asyncio
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from tests.soak.pair import Pair
from tests.support.servers import UNPACKED_MYSQL, PrivateMySQL
from tests.support.switching import Left

# How long a commit waits for its replica: longer than any is away, so that none is acknowledged that only the primary has.
_CONFIRM_MS = 3_600_000
_CAUGHT_UP_SECONDS = 60
_PLUGINS = "semisync_source.so;semisync_replica.so;mysql_clone.so"
_OPTIONS = (
    *("--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--sync-binlog=0", "--max-binlog-size=64M"),
    *(f"--plugin-load-add={_PLUGINS}", f"--plugin-dir={UNPACKED_MYSQL / 'usr/lib/mysql/plugin'}"),
    *(f"--loose-rpl-semi-sync-source-timeout={_CONFIRM_MS}", "--loose-rpl-semi-sync-replica-enabled=ON"),
    *("--binlog-expire-logs-seconds=600", "--relay-log=relay"),
)
_IS_CONFIRMED = "SELECT variable_value FROM performance_schema.global_status WHERE variable_name = "


class MysqlPair(Pair):
    """As `PrivateMySQL`, behind an address that moves."""

    product = PrivateMySQL.product

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._servers = [PrivateMySQL(directory / name) for name in ("a", "b")]
        self.primary, self._replica = self._servers

    def url(self, database: str) -> str:
        return self.primary.url(database).replace(f":{self.primary.port}/", f":{self.port}/")

    def start(self) -> None:
        """Both, and the address."""
        self.begin(self._start)
        self.wait()
        self._serve_address(self.primary.port)

    def stop(self) -> None:
        for server in self._servers:
            server.stop()
        self._end()

    def _start(self) -> None:
        for server in self._servers:
            self._launch(server)
            _do(server, "RESET BINARY LOGS AND GTIDS")
        self._attach()

    def _launch(self, server: PrivateMySQL, *more: str) -> None:
        server.start(f"--server-id={self._servers.index(server) + 1}", *_OPTIONS, *more)

    def restart(self) -> None:
        """Kill the primary and start it again on the same files. It commits alone until its replica is attached again, and
        there is no failover as long."""
        self.primary.kill()
        self.begin(self._restart)

    def _restart(self) -> None:
        self._launch(self.primary)
        self._confirm()

    # Failovers

    def switch_over(self, left: Left) -> None:
        """The old primary takes no writes, the new one has all of them, the address moves."""
        old, new = self.primary, self._replica
        _do(old, "SET GLOBAL super_read_only = ON")
        _await_all(new, _ask(old, "SELECT @@global.gtid_executed"))
        self._promote(left)
        _do(old, "SET GLOBAL rpl_semi_sync_source_enabled = OFF")
        self._attach()
        self.failovers[f"MySQL switched over, connections {left}"] += 1

    def fail_over(self, left: Left) -> None:
        old, new = self.primary, self._replica
        if left is Left.SILENT:
            self.switch.lead_to(old.port, left)
        old.kill()
        _do(new, "STOP REPLICA IO_THREAD")
        received = "SELECT received_transaction_set FROM performance_schema.replication_connection_status"
        _await_all(new, _ask(new, received))
        self._promote(left)
        self._launch(old, "--super-read-only=ON")
        if _ask(old, f"SELECT GTID_SUBTRACT(@@global.gtid_executed, '{_ask(new, 'SELECT @@global.gtid_executed')}')"):
            self._clone()  # it has what nobody was told of
        self._attach()
        self.failovers["MySQL gone" if left is Left.SILENT else "MySQL killed"] += 1

    def _promote(self, left: Left) -> None:
        new = self._replica
        _do(new, "STOP REPLICA", "RESET REPLICA ALL", "SET GLOBAL super_read_only = OFF", "SET GLOBAL read_only = OFF")
        self.switch.lead_to(new.port, left)
        self.primary, self._replica = new, self.primary

    def _clone(self) -> None:
        """The replica as the primary is."""
        replica, source = self._replica, self.primary
        self.failovers["MySQL cloned"] += 1
        _do(
            replica,
            "SET GLOBAL super_read_only = OFF",
            f"SET GLOBAL clone_valid_donor_list = '127.0.0.1:{source.port}'",
        )
        with suppress(DBAPIError):  # it ends, and nobody is there who would start it again
            _do(replica, f"CLONE INSTANCE FROM 'tests'@'127.0.0.1':{source.port} IDENTIFIED BY 'password'")
        with suppress(subprocess.TimeoutExpired):
            replica.wait(30)
        replica.stop()
        self._launch(replica, "--super-read-only=ON")

    def _attach(self) -> None:
        """Let the replica follow the primary, and the primary wait for it."""
        source = f"SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {self.primary.port}, SOURCE_USER = 'tests', "
        source += "SOURCE_PASSWORD = 'password', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1, "
        source += "SOURCE_CONNECT_RETRY = 1, SOURCE_RETRY_COUNT = 1000000"
        _do(
            self._replica,
            "SET GLOBAL super_read_only = ON",
            "STOP REPLICA",
            "RESET REPLICA ALL",
            f"CHANGE REPLICATION SOURCE TO {source}",
            "START REPLICA",
        )
        self._confirm()

    def _confirm(self) -> None:
        """From here on nothing is committed that is not at the replica; what was, is."""
        _await_all(self._replica, _ask(self.primary, "SELECT @@global.gtid_executed"))
        _do(self.primary, "SET GLOBAL rpl_semi_sync_source_enabled = ON")
        _await_all(self._replica, _ask(self.primary, "SELECT @@global.gtid_executed"))
        assert _ask(self.primary, f"{_IS_CONFIRMED}'Rpl_semi_sync_source_status'") == "ON"


def _await_all(server: PrivateMySQL, transactions: str) -> None:
    late = _ask(server, f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{transactions}', {_CAUGHT_UP_SECONDS})")
    assert late == 0, f"the replica has not caught up within {_CAUGHT_UP_SECONDS} s"


def _do(server: PrivateMySQL, *statements: str) -> None:
    asyncio.run(_run(server, statements))


def _ask(server: PrivateMySQL, query: str) -> Any:
    return asyncio.run(_run(server, (query,)))


async def _run(server: PrivateMySQL, statements: tuple[str, ...]) -> Any:
    """The first value of what the last one tells."""
    engine = create_async_engine(server.url("mysql"), isolation_level="AUTOCOMMIT")
    try:
        async with engine.connect() as connection:
            for statement in statements:
                result = await connection.exec_driver_sql(statement)
            return result.scalar() if result.returns_rows else None
    finally:
        await engine.dispose()
