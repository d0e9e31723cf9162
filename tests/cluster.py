"""A server of its own, which may be crashed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
from conftest import BIN, Connection, Database, wait_until


class Cluster:
    """A server of its own, in a folder, that may be crashed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment: dict[str, str] = {}
        self.database = Database("postgres", str(folder), os.environ["PGPORT"], "postgres")

    def run(self, program: str, *arguments: str) -> None:
        user = os.environ["BLOBGC_PGUSER_OS"] if os.getuid() == 0 else None
        with (self.folder / "output").open("a") as output:
            subprocess.run(
                [str(BIN / program), "-D", str(self.folder / "data"), *arguments],
                cwd=self.folder,
                env=os.environ | self.environment,
                user=user,
                extra_groups=[] if user else None,
                stdout=output,
                stderr=output,
                check=True,
            )

    def start(self) -> None:
        self.run("pg_ctl", "start", "-w", "-s", "-l", str(self.folder / "log"))

    def stop(self) -> None:
        self.run("pg_ctl", "stop", "-m", "immediate", "-s")

    def pull_the_plug(self, pid: int) -> None:
        self.stop()
        self.start()

    def kill_the_backend(self, pid: int) -> None:
        """The postmaster ends all other sessions too, and recovers."""
        with self.database.connect() as witness:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not answers(witness), "the server to notice the crash")
        wait_until(self.accepts, "the server to recover")

    def accepts(self) -> bool:
        try:
            self.database.connect().close()
        except psycopg.OperationalError:
            return False
        return True


def answers(conn: Connection) -> bool:
    try:
        conn.execute("select 1")
    except psycopg.OperationalError:
        return False
    return True


@contextlib.contextmanager
def cluster_of_its_own(
    *settings: str, name: str = "crash", environment: dict[str, str] | None = None
) -> Iterator[Cluster]:
    """Gone afterwards. Settings are lines of postgresql.conf."""
    folder = Path(tempfile.mkdtemp(prefix=f"blobgc_{name}."))
    if os.getuid() == 0:
        shutil.chown(folder, os.environ["BLOBGC_PGUSER_OS"])
    private = Cluster(folder)
    private.environment = environment or {}
    try:
        private.run("initdb", "-U", "postgres", "--auth=trust", "--locale=C.UTF-8", "-E", "UTF8",
                    "--no-sync")
        with (folder / "data" / "postgresql.conf").open("a") as conf:
            conf.write(f"listen_addresses = ''\nport = {private.database.port}\n")
            conf.write(f"unix_socket_directories = '{folder}'\n")
            conf.write("\n".join(settings) + "\n")
        private.start()
        yield private
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            private.stop()
        shutil.rmtree(folder)
