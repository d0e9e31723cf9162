"""examples/rails with real ActiveStorage: who uploads is seen before the object is written."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from conftest import ROOT, NewDatabase, execute, rows


def test_an_upload_is_announced_first_and_ends_with_the_object(
    new_database: NewDatabase, plain_script: str, tmp_path: Path
) -> None:
    database = new_database()
    database.psql(plain_script)
    database.psql((ROOT / "tests" / "shapes" / "rails.sql").read_text())
    with database.connect() as conn:
        execute(conn, """
            create index on rails.active_storage_blobs (('s3://bucket/' || key));
            select gc.track('rails.active_storage_blobs', url => $$'s3://bucket/' || key$$,
                undo => '0');
            insert into rails.active_storage_blobs
                (key, filename, service_name, byte_size, created_at)
            values ('gone', 'f', 's3', 1, now());
            delete from rails.active_storage_blobs;
        """)
        claimed = rows(conn, "select url from gc.claim('w')") or rows(
            conn, "select url from gc.claim('w')")
        assert claimed == [("s3://bucket/gone",)]
    done = subprocess.run(
        ["ruby", ROOT / "tests" / "rails_uploads.rb", tmp_path], env=database.environment,
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "seen": [["s3://bucket/one"]], "left": [["0"]], "read": "x", "exists": True,
        "failed": "the disk is full", "left_after_failure": [["0"]],
        "refused": "ZG001", "written": None,
    }
