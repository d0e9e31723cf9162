"""examples/django with real Django: who uploads is seen before the object is written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import django
import psycopg
import pytest
from blobgc_storage import AnnouncesUploads
from conftest import Connection, Database, execute, rows, value
from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage
from django.db import DatabaseError, connection, models, transaction


@dataclass
class Project:
    document: Any
    media: Path

    def create(self, content: bytes) -> Any:
        return self.document.objects.create(file=ContentFile(content, "a.txt"))


@pytest.fixture(scope="module")
def set_up(tmp_path_factory: pytest.TempPathFactory, plain_script: str) -> Iterator[Project]:
    """A project with one model, in a database of its own. Django can be set up once only."""
    name = f"blobgc_django_{os.getpid()}"
    media = tmp_path_factory.mktemp("media")
    host, port, user = (os.environ[key] for key in ("PGHOST", "PGPORT", "PGUSER"))
    with psycopg.connect(autocommit=True) as conn:
        execute(conn, f"create database {name}")
        Database(name, host, port, user).psql(plain_script)
        settings.configure(
            DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": name,
                                   "HOST": host, "PORT": port, "USER": user}},
            MEDIA_ROOT=str(media), USE_TZ=True, DEFAULT_AUTO_FIELD="django.db.models.BigAutoField")
        django.setup()
        yield Project(make_model(media), media)
        connection.close()
        execute(conn, f"drop database {name} with (force)")


class Writing(FileSystemStorage):
    """What the store does, watched from another session."""

    seen: list[Any] = []
    fails = False

    def _save(self, name: str, content: Any) -> str:
        with other() as conn:
            self.seen.append(value(conn, "select url from gc.holds"))
        if self.fails:
            raise OSError("the disk is full")
        saved: str = super()._save(name, content)  # type: ignore[misc]
        return saved


class Uploads(AnnouncesUploads, Writing):
    pass


def make_model(media: Path) -> Any:
    class Document(models.Model):
        file = models.FileField(
            storage=Uploads(collection="library_document", prefix=f"file://{media}/"))

        class Meta:
            app_label = "library"

    with connection.schema_editor() as editor:
        editor.create_model(Document)
    with other() as conn:
        execute(conn, f"""
            create index on library_document (('file://{media}/' || file));
            select gc.track('library_document', url => $$'file://{media}/' || file$$,
                condition => 'false', undo => '0');
            update gc.settings set strict_uploads = true;
        """)
    return Document


def other() -> Connection:
    return psycopg.connect(dbname=settings.DATABASES["default"]["NAME"], autocommit=True)


@pytest.fixture
def project(set_up: Project) -> Project:
    Writing.seen.clear()
    Writing.fails = False
    with other() as conn:
        execute(conn, "truncate library_document; delete from gc.holds; delete from gc.tombstones")
    for path in set_up.media.iterdir():
        path.unlink()
    return set_up


def holds() -> int:
    with other() as conn:
        return int(value(conn, "select count(*) from gc.holds"))


def test_an_upload_is_announced_first_and_ends_with_the_row(project: Project) -> None:
    with transaction.atomic():
        project.create(b"x")
        assert Writing.seen == [f"file://{project.media}/a.txt"]
        assert holds() == 1, "the row is not committed, so the upload has not ended"
    assert holds() == 0
    assert (project.media / "a.txt").read_bytes() == b"x"
    assert project.document.objects.get().file.name == "a.txt"


def test_without_a_transaction_it_ends_after_the_file(project: Project) -> None:
    with other() as conn:
        execute(conn, "update gc.settings set strict_uploads = false")
        project.create(b"x")
        execute(conn, "update gc.settings set strict_uploads = true")
    assert len(Writing.seen) == 1 and holds() == 0


def test_a_write_that_fails_ends_the_upload(project: Project) -> None:
    Writing.fails = True
    with pytest.raises(OSError, match="the disk is full"), transaction.atomic():
        project.create(b"x")
    assert len(Writing.seen) == 1 and holds() == 0


def test_after_a_rollback_the_upload_ends_by_itself(project: Project) -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        project.create(b"x")
        raise RuntimeError("changed my mind")
    assert holds() == 1
    with other() as conn:
        assert value(conn, "select held_until <= now() + s.upload_timeout from gc.holds, "
                           "gc.settings as s")


def test_a_name_whose_object_is_being_deleted_is_waited_for(project: Project) -> None:
    with transaction.atomic():
        row = project.create(b"x")
    row.delete()
    with other() as conn:
        claimed = rows(conn, "select id, url from gc.claim('w')") or rows(
            conn, "select id, url from gc.claim('w')")
        assert [url for _, url in claimed] == [f"file://{project.media}/a.txt"]
        (project.media / "a.txt").unlink()
        with pytest.raises(DatabaseError, match="the object is being deleted"):
            project.create(b"y")
        assert not (project.media / "a.txt").exists(), "nothing was written"
        value(conn, "select gc.confirm('w', %s)", [claimed[0][0]])
    with transaction.atomic():
        project.create(b"y")
    assert (project.media / "a.txt").read_bytes() == b"y"
