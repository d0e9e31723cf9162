"""Images that are pushed: what they consist of, and how a whole registry is filled with them."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from harness import Connection, execute

MEDIA_TYPE = "application/vnd.docker.distribution.manifest.v2+json"


@dataclass(frozen=True)
class Image:
    """An image is its number: where it is and what it consists of follow from that."""

    number: int
    repositories: int

    @property
    def repository(self) -> str:
        return f"acme/app-{self.number % self.repositories}"

    @property
    def tag(self) -> str:
        return f"v{self.number}"

    @property
    def is_kept(self) -> bool:
        """Every second image of a repository."""
        return self.number // self.repositories % 2 == 0

    @property
    def configuration(self) -> bytes:
        return f"configuration {self.number}".encode()

    @property
    def layers(self) -> list[bytes]:
        """One that images of both fates share, one that some of one fate share, one of its own."""
        return [f"base {self.number % 7}".encode(), f"runtime {self.number % 200}".encode(),
                f"program {self.number}".encode()]

    @property
    def blobs(self) -> list[bytes]:
        return [self.configuration, *self.layers]

    @cached_property
    def manifest(self) -> bytes:
        return json.dumps({
            "schemaVersion": 2,
            "mediaType": MEDIA_TYPE,
            "config": descriptor("application/vnd.docker.container.image.v1+json",
                                 self.configuration),
            "layers": [descriptor("application/vnd.docker.image.rootfs.diff.tar.gzip", layer)
                       for layer in self.layers],
        }).encode()


def descriptor(media_type: str, content: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "size": len(content), "digest": digest(content)}


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def digests(images: list[Image]) -> set[str]:
    """All that has to be there for these images."""
    return {digest(content) for image in images for content in (image.manifest, *image.blobs)}


# Filling a registry -------------------------------------------------------------------------------

COLLECT_AT_ONCE = """
update gc.settings set jitter = '0', undo = '0', brake_share = 1;
insert into gc.review_after_defaults
values ('manifest_delete', '0'), ('layer_delete', '0'), ('tag_delete', '0');
"""

PUSHED = """
create temporary table pushed (
    repository text, tag text, media_type text, payload bytea,
    digest bytea generated always as ('\\x01'::bytea || sha256(payload)) stored
);
"""

FILL = """
create temporary table part as
select p.digest as manifest_digest, d.n - 1 as position,
    '\\x01'::bytea || decode(substr(d.value ->> 'digest', 8), 'hex') as digest,
    (d.value -> 'size')::bigint as size, d.value ->> 'mediaType' as media_type
from pushed as p
cross join lateral (select convert_from(p.payload, 'UTF8')::jsonb) as m(document)
cross join lateral jsonb_array_elements(jsonb_build_array(m.document -> 'config')
    || (m.document -> 'layers')) with ordinality as d(value, n);

select registry.create_repository(r.name)
from (select distinct repository from pushed order by 1) as r(name);

insert into registry.blobs (digest, size, media_type)
select distinct digest, size, media_type from part;

insert into registry.repository_blobs (namespace_id, repository_id, digest)
select distinct r.namespace_id, r.id, t.digest
from pushed as p
join part as t on t.manifest_digest = p.digest
join registry.repositories as r on r.path = p.repository;

insert into registry.manifests (
    namespace_id, repository_id, digest, media_type, artifact_type, payload,
    configuration_blob_digest, total_size
)
select r.namespace_id, r.id, p.digest, p.media_type, c.media_type, p.payload, c.digest, t.size
from pushed as p
join part as c on c.manifest_digest = p.digest and c.position = 0
join (select manifest_digest, sum(size) from part group by 1) as t(manifest_digest, size)
    on t.manifest_digest = p.digest
join registry.repositories as r on r.path = p.repository;

insert into registry.layers (
    namespace_id, repository_id, manifest_id, position, digest, size, media_type
)
select m.namespace_id, m.repository_id, m.id, t.position, t.digest, t.size, t.media_type
from registry.manifests as m
join part as t on t.manifest_digest = m.digest and t.position > 0;

insert into registry.tags (namespace_id, repository_id, name, manifest_id)
select m.namespace_id, m.repository_id, p.tag, m.id
from registry.manifests as m
join pushed as p on p.digest = m.digest;

drop table pushed, part;
"""


IS_ANYTHING_LEFT = """
select exists (select from gc.tombstones)
    or exists (select from gc.manifest_review_queue where review_after <= now())
    or exists (select from gc.blob_review_queue where review_after <= now())
"""


def create_filled_registry(db: Connection, store: str, images: list[Image]) -> None:
    """A registry that has these images, each with its tag. What is deleted is reviewed at once.

    The rows are those that pushes leave, but are inserted table by table; there are no objects.
    """
    db.execute("create extension blobgc")
    db.execute("select gc.create_registry(store => %s)", (store,))
    execute(db, COLLECT_AT_ONCE)
    execute(db, PUSHED)
    with db.cursor() as cursor, cursor.copy(
            "copy pushed (repository, tag, media_type, payload) from stdin") as copy:
        for image in images:
            copy.write_row((image.repository, image.tag, MEDIA_TYPE, image.manifest))
    execute(db, FILL)
    db.execute("vacuum analyze")


def push(db: Connection, image: Image, write: Callable[[bytes], object]) -> None:
    """As a client does: what is not there is announced, written and finished; then the manifest."""
    for content in image.blobs:
        blob = image.repository, digest(content)
        if db.execute("select registry.has_blob(%s, %s)", blob).fetchone() == (False,):
            db.execute("select registry.begin_blob_upload(%s, %s)", blob)
            write(content)
            db.execute("select registry.finish_blob_upload(%s, %s, %s)", (*blob, len(content)))
    db.execute("select registry.put_manifest(%s, %s, %s)",
               (image.repository, image.manifest, image.tag))


def untag(db: Connection, images: list[Image]) -> None:
    """Takes their tags away, which queues their manifests."""
    gone = db.execute("delete from registry.tags where name = any (%s)",
                      ([image.tag for image in images],)).rowcount
    assert gone == len(images)
