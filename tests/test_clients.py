"""Real clients and the server of examples/registry: skopeo, buildah and oras, and many at once."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from conftest import Connection, execute, rows, value, wait_until
from oci_images import Bundle, digest_of, image, platforms, signature
from serving import Served, collect_at_once, pass_time, runner, serve, wait_until_collected
from stores import AmazonObjects, GoogleObjects

PULLED = "every byte is what was pushed"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("registry") / "store"


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[Served]:
    store.mkdir()
    with serve(f"file://{store}") as served:
        yield served


def run(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120,
                          check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def skopeo_push(server: Served, layout: Path, image_name: str) -> None:
    run("skopeo", "copy", "--all", "--preserve-digests", "--dest-tls-verify=false",
        f"oci:{layout}", f"docker://{server.address}/{image_name}")


def skopeo_pull(server: Served, image_name: str, layout: Path) -> dict[str, bytes]:
    """What was pulled, by digest."""
    run("skopeo", "copy", "--all", "--preserve-digests", "--src-tls-verify=false",
        f"docker://{server.address}/{image_name}", f"oci:{layout}")
    files = (layout / "blobs/sha256").iterdir()
    return {f"sha256:{path.name}": path.read_bytes() for path in files}


def contents(what: Bundle) -> dict[str, bytes]:
    return what.manifests | what.blobs


def multi_arch(name: str) -> Bundle:
    return platforms({
        "amd64": image([("base amd64", 40_000), (f"{name} amd64", 9_000)]),
        "arm64": image([("base arm64", 40_000), (f"{name} arm64", 9_000)], "arm64")})


# skopeo


def test_skopeo_pushes_pulls_lists_and_deletes_images_of_two_architectures(
    server: Served, tmp_path: Path
) -> None:
    pushed = multi_arch("one")
    pushed.write_layout(tmp_path / "one")
    skopeo_push(server, tmp_path / "one", "skopeo/app:v1")
    skopeo_push(server, tmp_path / "one", "skopeo/app:v2")
    assert skopeo_pull(server, "skopeo/app:v1", tmp_path / "back") == contents(pushed), PULLED
    listed = run("skopeo", "list-tags", "--tls-verify=false",
                 f"docker://{server.address}/skopeo/app")
    assert json.loads(listed)["Tags"] == ["v1", "v2"]
    seen = run("skopeo", "inspect", "--tls-verify=false", f"docker://{server.address}/skopeo/app:v1")
    assert json.loads(seen)["Digest"] == pushed.digest
    run("skopeo", "delete", "--tls-verify=false", f"docker://{server.address}/skopeo/app:v1")
    assert server.client().tags("skopeo/app") == []  # It deletes by digest: both tags are gone.


def test_skopeo_mounts_what_another_repository_has(
    server: Served, store: Path, tmp_path: Path
) -> None:
    """It remembers where it has seen a layer, and asks for a mount instead of sending it."""
    pushed = image([("mounted", 20_000)])
    server.client().push("mount/source", pushed, "v1")
    skopeo_pull(server, "mount/source:v1", tmp_path / "seen")
    layer = digest_of(max(pushed.blobs.values(), key=len)).removeprefix("sha256:")
    (file,) = store.rglob(f"{layer}/data")
    before = file.stat().st_ino
    run("skopeo", "copy", "--preserve-digests", "--src-tls-verify=false",
        "--dest-tls-verify=false", f"docker://{server.address}/mount/source:v1",
        f"docker://{server.address}/mount/target:v1")
    assert file.stat().st_ino == before, "the layer was sent and written again"
    assert skopeo_pull(server, "mount/target:v1", tmp_path / "back") == contents(pushed), PULLED


def test_a_pull_is_noted_but_not_a_look_nor_that_of_a_scanner(
    server: Served, tmp_path: Path
) -> None:
    for tag in ("pulled", "seen", "scanned"):
        server.client().push("pulls/app", image([(tag, 1_000)]), tag)
    with server.connect() as conn:
        execute(conn, "insert into registry.scanners (client) values ('skopeo/**')")
        skopeo_pull(server, "pulls/app:scanned", tmp_path / "scanned")
        server.client().ask("HEAD", "/v2/pulls/app/manifests/seen")
        server.client().pull("pulls/app", "pulled")
        noted = "select p.name from registry.pulls as p join registry.repositories as r " \
                "on r.id = p.repository_id where r.path = 'pulls/app'"
        wait_until(lambda: rows(conn, noted) == [("pulled",)], "the pull to be noted")
        execute(conn, "delete from registry.scanners")
        skopeo_pull(server, "pulls/app:scanned", tmp_path / "again")
        wait_until(lambda: sorted(rows(conn, noted)) == [("pulled",), ("scanned",)],
                   "a pull that counts again")


# buildah


def buildah(folder: Path) -> Callable[..., str]:
    """With a storage of its own, that works without any right of the kernel's."""
    def call(*command: object) -> str:
        return run("buildah", "--root", folder / "root", "--runroot", folder / "run",
                   "--storage-driver", "vfs", *command).strip()
    return call


def test_buildah_builds_on_what_it_pulls_and_pushes_it_with_a_list(
    server: Served, tmp_path: Path
) -> None:
    call, here = buildah(tmp_path), f"docker://{server.address}"
    server.client().push("buildah/base", multi_arch("base image"), "v1")
    base = call("pull", "-q", "--tls-verify=false", f"{here}/buildah/base:v1")
    container = call("from", "--pull-never", base)
    (tmp_path / "program").write_text("print('hello')")
    call("copy", "-q", container, tmp_path / "program", "/program")
    call("commit", "-q", container, "built:v1")
    call("push", "-q", "--tls-verify=false", "built:v1", f"{here}/buildah/app:v1")
    call("manifest", "create", "list:v1")
    call("manifest", "add", "--tls-verify=false", "list:v1", f"{here}/buildah/app:v1")
    call("manifest", "push", "-q", "--all", "--tls-verify=false", "list:v1",
         f"{here}/buildah/app:list")
    assert server.client().tags("buildah/app") == ["list", "v1"]
    listed = server.client().pull("buildah/app", "list")
    (child,) = json.loads(listed.top)["manifests"]
    assert child["digest"] in listed.manifests
    again = buildah(tmp_path / "elsewhere")
    assert again("pull", "-q", "--tls-verify=false", f"{here}/buildah/app:list")


# oras


def oras_client(server: Served) -> Any:
    return import_module("oras.provider").Registry(server.address, insecure=True)


def test_oras_pushes_and_pulls_artifacts_and_signs_an_image(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signature is an artifact whose subject is the image."""
    monkeypatch.chdir(tmp_path)
    subject = multi_arch("signed")
    server.client().push("oras/app", subject, "v1")
    (tmp_path / "signature.txt").write_text(f"signed {subject.digest}")
    registry = oras_client(server)
    target = f"{server.address}/oras/app:signature"
    described = import_module("oras.oci").Subject(
        subject.media_type, subject.digest, len(subject.top))
    pushed = registry.push(target, files=["signature.txt:application/vnd.example.signature"],
                           subject=described, quiet=True)
    assert pushed.headers["OCI-Subject"] == subject.digest
    assert server.client().referrers("oras/app", subject.digest) == [
        pushed.headers["Docker-Content-Digest"]]
    (pulled,) = registry.pull(target, outdir=str(tmp_path / "pulled"))
    assert Path(pulled).read_text() == f"signed {subject.digest}"
    assert sorted(registry.get_tags(f"{server.address}/oras/app")) == ["signature", "v1"]


def test_oras_pushes_in_chunks(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = random.Random(1).randbytes(300_000)
    (tmp_path / "big.bin").write_bytes(content)
    registry = oras_client(server)
    target = f"{server.address}/oras/chunked:v1"
    registry.push(target, files=["big.bin"], do_chunked=True, chunk_size=70_000, quiet=True)
    (pulled,) = registry.pull(target, outdir=str(tmp_path / "pulled"))
    assert digest_of(Path(pulled).read_bytes()) == digest_of(content)


# Other stores


@pytest.mark.parametrize("kind", ["amazon", "google"])
def test_a_registry_in_a_bucket_is_pushed_to_and_pulled_from(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """Also a blob so big that it is written in parts; and what is garbage leaves the bucket."""
    objects: AmazonObjects | GoogleObjects = request.getfixturevalue(kind)
    store = objects.prefix.removesuffix("/")
    pushed = image([("base", 40_000), ("big", 9_000_000)])
    pushed.write_layout(tmp_path / "layout")
    with serve(store, objects.environment) as served:
        skopeo_push(served, tmp_path / "layout", "bucket/app:v1")
        assert skopeo_pull(served, "bucket/app:v1", tmp_path / "back") == contents(pushed), PULLED
        big = max(pushed.blobs, key=lambda digest: len(pushed.blobs[digest]))
        part = served.client().ask("GET", f"/v2/bucket/app/blobs/{big}",
                                   Range="bytes=8000000-8000009")
        assert part.body == pushed.blobs[big][8_000_000:8_000_010]
        assert len(objects.names()) == len(pushed.blobs)
        served.client().delete("bucket/app", "v1")
        with served.connect() as conn:
            collect_at_once(conn)
            pass_time(conn)
            environment = served.database.environment | objects.environment
            with runner(environment, store):
                wait_until_collected(conn)
        assert objects.names() == set()


# Many at once


def shared_image(number: int) -> Bundle:
    """A layer that all have, one that ten have, one of its own; every other one as a list."""
    made = image([("base", 30_000), (f"runtime {number // 10}", 10_000),
                  (f"program {number}", 3_000)])
    other = image([("base", 30_000), (f"program {number} arm64", 3_000)], "arm64")
    return platforms({"amd64": made, "arm64": other}) if number % 2 else made


def objects_deleted(conn: Connection) -> int:
    deleted: int = value(conn, "select count(*) from gc.deletion_log where collection = 'blob'")
    return deleted


def push_until_accepted(server: Served, layout: Path, name: str) -> int:
    """Layers may be collected between being found and being used: then a client pushes again."""
    for refusals in range(20):
        try:
            skopeo_push(server, layout, name)
        except AssertionError:
            continue
        return refusals
    raise AssertionError(f"{name} was never accepted")


def test_every_push_that_was_acknowledged_can_be_pulled_while_everything_is_collected_at_once(
    server: Served, store: Path, tmp_path: Path
) -> None:
    """50 skopeos push at the same time what others are deleting, and nothing waits a moment."""
    images = [shared_image(number) for number in range(50)]
    for number, each in enumerate(images):
        each.write_layout(tmp_path / f"layout-{number}")
        server.client().push(f"many/app-{number % 5}", each, f"old-{number}")
    server.client().push("many/first", image([("to see that the runner runs", 10)]))
    with server.connect() as conn:
        collect_at_once(conn)
        # Time for a push, but what was pushed before has had it.
        execute(conn, "update gc.settings set keep_alive = '30 seconds'")
        pass_time(conn)
        with runner(server.database.environment, f"file://{store}"), ThreadPoolExecutor(50) as pool:
            wait_until(lambda: objects_deleted(conn) > 0, "the runner runs")
            before, pushes = objects_deleted(conn), []
            for number in range(50):
                server.client().delete(f"many/app-{number % 5}", f"old-{number}")
                pushes.append(pool.submit(push_until_accepted, server,
                                          tmp_path / f"layout-{number}",
                                          f"many/app-{number % 5}:new-{number}"))
            refused = [push.result() for push in pushes]
            pass_time(conn)
            wait_until_collected(conn)
        deleted = objects_deleted(conn) - before
    print(f"{sum(refused)} pushes were refused and repeated; {deleted} objects were deleted")
    assert deleted > 0, "nothing was collected, so nothing was shown"
    client = server.client()
    for number, each in enumerate(images):
        pulled = client.pull(f"many/app-{number % 5}", f"new-{number}")
        assert pulled == each, PULLED
    with ThreadPoolExecutor(10) as pool:
        pulls = [pool.submit(skopeo_pull, server, f"many/app-{number % 5}:new-{number}",
                             tmp_path / f"back-{number}") for number in range(0, 50, 5)]
        for number, pull in zip(range(0, 50, 5), pulls, strict=True):
            assert pull.result() == contents(images[number]), PULLED
    assert_store_matches(server, store)


def assert_store_matches(server: Served, store: Path) -> None:
    """An object for every row with the content that the row says, and no other."""
    with server.connect() as conn:
        expected = {digest: size for digest, size in rows(
            conn, "select registry.digest_text(digest), size from registry.blobs")}
    found = {}
    for path in store.rglob("data"):
        content = path.read_bytes()
        assert hashlib.sha256(content).hexdigest() == path.parent.name
        found[f"sha256:{path.parent.name}"] = os.path.getsize(path)
    assert found == expected


def test_a_signature_goes_with_its_image_and_not_before(server: Served, store: Path) -> None:
    subject = image([("signed image", 5_000)])
    signed = signature(subject, "me")
    client = server.client()
    client.push("signed/app", subject, "v1")
    client.push("signed/app", signed)
    with server.connect() as conn:
        collect_at_once(conn)
        pass_time(conn)
        with runner(server.database.environment, f"file://{store}"):
            wait_until_collected(conn)
            assert client.pull("signed/app", signed.digest) == signed
            client.delete("signed/app", "v1")
            pass_time(conn)
            wait_until_collected(conn)
        assert client.referrers("signed/app", subject.digest) == []
    assert_store_matches(server, store)
