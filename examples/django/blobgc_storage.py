"""Uploads of Django that blobgc knows of: a mixin for any storage class.

    class Uploads(AnnouncesUploads, S3Storage):
        pass

    STORAGES = {"default": {"BACKEND": "shop.storage.Uploads", "OPTIONS": {
        "collection": "library_document", "prefix": "s3://bucket/"}}, …}

Before a file is written, gc.begin_upload says so. An object of that name that is to be deleted
then stays; one that is being deleted at this moment is waited for. The upload ends when the
transaction that saves the row commits, or when writing fails. After a rollback it ends by itself,
after gc.settings.upload_timeout. Without a transaction it ends as soon as the file is written; then
the row has that time, too.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any
from uuid import uuid4

from django.core.files import File
from django.core.files.storage import Storage
from django.db import connections, transaction

log = logging.getLogger(__name__)


class AnnouncesUploads(Storage):
    """Stands before the storage in the list of base classes.

    The url of the collection is `prefix` and the name of the file. A row that is not there yet has
    no key: the url says which object is meant, and `no_key` is a key that no row has.
    """

    def __init__(self, *args: Any, collection: str, prefix: str, no_key: str = "0",
                 using: str = "default", **options: Any) -> None:
        super().__init__(*args, **options)
        self.collection = collection
        self.prefix = prefix
        self.no_key = no_key
        self.using = using

    def _save(self, name: str, content: File[Any]) -> str:
        upload = str(uuid4())
        self._call("gc.begin_upload(name => %s, key => %s, url => %s, upload => %s)",
                   self.collection, self.no_key, self.prefix + name, upload)
        try:
            saved: str = super()._save(name, content)  # type: ignore[misc]
        except BaseException:
            self._end(upload)
            raise
        transaction.on_commit(partial(self._end, upload), using=self.using)
        return saved

    def _end(self, upload: str) -> None:
        in_time = self._call("gc.end_upload(name => %s, key => %s, upload => %s)",
                             self.collection, self.no_key, upload)
        if not in_time:
            log.error("an upload to %s took longer than gc.settings.upload_timeout: "
                      "its object may be gone", self.prefix)

    def _call(self, function: str, *parameters: str) -> Any:
        """In a transaction of its own: others must see it before the object is written."""
        connection = connections[self.using].copy()
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"select {function}", parameters)
                return cursor.fetchone()[0]
        finally:
            connection.close()
