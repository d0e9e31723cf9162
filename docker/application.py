"""Something to collect, for compose.yaml: posts with files, which are deleted after a while."""

import contextlib
import os
import time
from importlib import import_module
from typing import Any

import psycopg

TABLES = """
create table if not exists file (id bigint generated always as identity primary key, bytes bigint);
create table if not exists post (
    id bigint generated always as identity primary key, file_id bigint references file,
    created_at timestamptz not null default now()
);
create index if not exists post_file_id_idx on post (file_id);
select * from gc.track('file', url => $$'gs://blobgc/files/' || id$$, size => 'bytes', undo => '0');
select gc.set_brake('file', share => 1);        -- most of its files go within the hour
select gc.set_delay('file_insert', '1 minute'), gc.set_delay('post_delete', '5 seconds');
"""


def main() -> None:
    bucket = import_module("google.cloud.storage").Client(project="blobgc").bucket("blobgc")
    with contextlib.suppress(import_module("google.api_core.exceptions").Conflict):
        bucket.create()
    keeps = os.environ.get("KEEP_POSTS", "30 seconds")
    with psycopg.connect(autocommit=True) as connection:
        connection.execute(TABLES)
        while True:
            post(connection, bucket)
            connection.execute(
                "delete from post where created_at < now() - %s::interval", [keeps])
            time.sleep(0.2)


def post(connection: psycopg.Connection, bucket: Any) -> None:
    """The row first, then the object, then what refers to it."""
    content = os.urandom(1000)
    row = connection.execute(
        "insert into file (bytes) values (%s) returning id", [len(content)]).fetchone()
    assert row is not None
    bucket.blob(f"files/{row[0]}").upload_from_string(content)
    connection.execute("insert into post (file_id) values (%s)", row)


if __name__ == "__main__":
    main()
