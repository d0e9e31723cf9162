"""How blobgc is installed in a database: as an extension, as a plain script, or not at all."""

import blobgc
from blobgc.database import Database


class Installation:
    def __init__(self, dsn: str) -> None:
        self.database = Database(dsn)
        (row,) = self.database.call(
            "select to_regnamespace('gc') is not null as has_schema, "
            "to_regprocedure('gc.version()') is not null as has_version, "
            "exists (select from pg_extension where extname = 'blobgc') as is_extension, "
            "exists (select from pg_available_extension_versions "
            "where name = 'blobgc' and version = %s) as has_files", blobgc.__version__)
        self.has_schema: bool = row["has_schema"]
        self.is_ours: bool = row["has_version"]
        self.is_extension: bool = row["is_extension"]
        self.has_files: bool = row["has_files"]  # Of this version, on the server.

    @property
    def kind(self) -> str:
        return "an extension" if self.is_extension else "a plain script"

    def has_way(self, version: str) -> bool:
        """Whether the server has the files that an upgrade of the extension needs."""
        return bool(self.database.call(
            "select from pg_extension_update_paths('blobgc') "
            "where source = %s and target = %s and path is not null",
            version, blobgc.__version__))

    def has_old_registry(self) -> bool:
        """Whether there is a registry that was not upgraded with blobgc. For a current blobgc."""
        return bool(self.database.call(
            "select from gc._find_registry() as r where r.version <> gc.version()"))

    def run(self, script: str) -> None:
        """All of it or nothing."""
        with self.database.transaction() as connection:
            connection.execute(script.encode())

    def run_as_owner(self, script: str) -> None:
        """What it makes must belong to whom the rest belongs, also if a superuser runs it."""
        (row,) = self.database.call(
            "select case when pg_get_userbyid(nspowner) <> current_user "
            "then 'set local role ' || nspowner::regrole || ';' else '' end as become "
            "from pg_namespace where nspname = 'gc'")
        self.run(row["become"] + script)
