"""What happens in the applications of docs/recipes.md, and what is garbage then.

All of it is plain SQL that knows nothing of blobgc: statements that add, move and delete, and
queries for the rows that nothing uses and for the addresses of all objects.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Application:
    title: str  # The heading of its recipe.
    shape: str  # The file in tests/shapes.
    path: str  # Where its tables are.
    fill: list[str]  # What a history begins with.
    acts: list[str]
    dead: dict[str, str] = field(default_factory=dict)  # Of each table, the keys of garbage.
    objects: str = ""  # The addresses of the objects of all rows.
    left_over: list[str] = field(default_factory=list)  # Rows that should have gone with others.
    waits: str = ""  # A word of its recipe without which the objects cannot be compared.


def one_of(table: str, column: str = "id", where: str = "true") -> str:
    return f"(select {column} from {table} where {where} order by random() limit 1)"


def some_of(table: str, where: str = "true") -> str:
    return (f"ctid = any (array(select ctid from {table} where {where} "
            f"order by random() limit 2))")


def refers(table: str, column: str, target: str, rest: dict[str, str] | None = None) -> list[str]:
    """Rows of a table come, refer to something else, and go."""
    values = {**(rest or {}), column: "t.id"}
    return [
        f"insert into {table} ({', '.join(values)}) select {', '.join(values.values())} "
        f"from {target} as t order by random() limit 3",
        f"update {table} set {column} = {one_of(target)} where {some_of(table)}",
        f"delete from {table} where {some_of(table)}",
    ]


RANDOM = "md5(random()::text)"

# Rails

BLOB = ("insert into active_storage_blobs (key, filename, byte_size, created_at{more}) "
        f"select {RANDOM}, 'f', 1, now(){{values}} from generate_series(1, {{n}})")
RAILS_BLOB = BLOB.format(more=", service_name", values=", 's3'", n=1) + " returning id"
RAILS52_BLOB = BLOB.format(more=", checksum", values=", 'c'", n=1) + " returning id"
ATTACH = ("insert into active_storage_attachments "
          "(name, record_type, record_id, blob_id, created_at) ")
POSTS = "record_type = 'Post'"
ATTACHING = [
    *[ATTACH + "select 'file', 'Post', (random() * 1000000)::int, id, now() "
      "from active_storage_blobs order by random() limit 3"] * 4,
    f"update active_storage_attachments set blob_id = {one_of('active_storage_blobs')} "
    f"where {some_of('active_storage_attachments', POSTS)} and {POSTS}",
    f"delete from active_storage_attachments where {some_of('active_storage_attachments', POSTS)}",
    f"delete from active_storage_attachments where {some_of('active_storage_attachments', POSTS)}",
    f"delete from active_storage_attachments where {some_of('active_storage_attachments')}",
]
RAILS = Application(
    title="Rails: ActiveStorage", shape="rails", path="rails",
    fill=[BLOB.format(more=", service_name", values=", 's3'", n=8)],
    acts=[
        *ATTACHING,
        # A preview image is a new blob that is attached to a blob; a variant has a record between.
        f"with b as ({RAILS_BLOB}) " + ATTACH
        + "select 'preview_image', 'ActiveStorage::Blob', o.id, b.id, now() "
        f"from b, lateral (select {one_of('active_storage_blobs')} as id) as o "
        "where o.id is not null",
        f"with b as ({RAILS_BLOB}), v as (insert into active_storage_variant_records "
        f"(blob_id, variation_digest) select id, {RANDOM} from active_storage_blobs "
        "order by random() limit 1 returning id) " + ATTACH
        + "select 'image', 'ActiveStorage::VariantRecord', v.id, b.id, now() from b, v",
    ],
    dead={"active_storage_blobs": """
        with recursive needed(id) as (
            select blob_id from active_storage_attachments where record_type = 'Post'
            union
            select a.blob_id
            from needed as n
            join (
                select blob_id, record_id as original from active_storage_attachments
                where record_type = 'ActiveStorage::Blob'
                union all
                select a.blob_id, v.blob_id
                from active_storage_attachments as a
                join active_storage_variant_records as v on v.id = a.record_id
                where a.record_type = 'ActiveStorage::VariantRecord'
            ) as a on a.original = n.id
        )
        select id from active_storage_blobs where id not in (select id from needed)"""},
    objects="select 's3://bucket/' || key from active_storage_blobs",
    left_over=[
        "select id from active_storage_attachments where record_type = 'ActiveStorage::Blob' "
        "and record_id not in (select id from active_storage_blobs)",
        "select id from active_storage_attachments where record_type = "
        "'ActiveStorage::VariantRecord' "
        "and record_id not in (select id from active_storage_variant_records)",
    ],
)
RAILS52 = Application(
    title="Rails 5.2: ActiveStorage without foreign keys", shape="rails52", path="rails52",
    fill=[BLOB.format(more=", checksum", values=", 'c'", n=8)],
    acts=[
        *ATTACHING,
        f"with b as ({RAILS52_BLOB}) " + ATTACH
        + "select 'preview_image', 'ActiveStorage::Blob', o.id, b.id, now() "
        f"from b, lateral (select {one_of('active_storage_blobs')} as id) as o "
        "where o.id is not null",
    ],
    dead={"active_storage_blobs": """
        with recursive needed(id) as (
            select blob_id from active_storage_attachments where record_type = 'Post'
            union
            select a.blob_id
            from needed as n
            join active_storage_attachments as a
                on a.record_type = 'ActiveStorage::Blob' and a.record_id = n.id
        )
        select id from active_storage_blobs where id not in (select id from needed)"""},
    objects="select 's3://bucket/' || key from active_storage_blobs",
    left_over=RAILS.left_over[:1],
)

# Django

DOCUMENT = ("insert into library_document (title, file, preview) "
            f"select 't', 'd/' || {RANDOM}, case when i % 2 = 0 then '' else 'p/' || {RANDOM} end "
            "from generate_series(1, {n}) as i")
DJANGO_FILE = Application(
    title="Django: FileField", shape="django", path="django",
    fill=[DOCUMENT.format(n=6)],
    acts=[
        DOCUMENT.format(n=2),
        f"update library_document set file = 'd/' || {RANDOM} "
        f"where {some_of('library_document')}",
        f"update library_document set preview = '' where {some_of('library_document')}",
        "update library_document set title = 'other'",
        # A copy of a row has the same files.
        "insert into library_document (title, file, preview) select title, file, preview "
        "from library_document order by random() limit 1",
        f"delete from library_document where {some_of('library_document')}",
    ],
    objects="select 's3://bucket/' || u from library_document, "
            "unnest(array[nullif(file, ''), nullif(preview, '')]) as u where u is not null",
    waits="collect =>",
)
IS_PICTURE = "(select id from django_content_type where model = 'picture')"
DJANGO_GENERIC = Application(
    title="Django: GenericForeignKey", shape="django", path="django",
    fill=[f"insert into gallery_picture (image) select {RANDOM} from generate_series(1, 8)"],
    acts=[
        *refers("gallery_album", "cover_id", "gallery_picture", {"title": "'t'"}),
        *refers("gallery_item", "object_id", "gallery_picture", {"content_type_id": IS_PICTURE}),
        *refers("gallery_note", "object_id", "gallery_picture", {"content_type_id": IS_PICTURE}),
        # The same numbers, of another type; and a pair whose type changes.
        "insert into gallery_item (content_type_id, object_id) "
        "select 1, id from gallery_picture order by random() limit 2",
        "insert into gallery_note (content_type_id, object_id) "
        "select 2, 'no number ' || id from gallery_picture order by random() limit 2",
        f"update gallery_item set content_type_id = 1 where {some_of('gallery_item')}",
    ],
    dead={"gallery_picture": f"""
        select id from gallery_picture as p
        where not exists (select from gallery_album as a where a.cover_id = p.id)
            and not exists (
                select from gallery_item as i
                where i.content_type_id = {IS_PICTURE} and i.object_id = p.id)
            and not exists (
                select from gallery_note as n
                where n.content_type_id = {IS_PICTURE} and n.object_id = p.id::text)"""},
    objects="select 's3://bucket/' || image from gallery_picture",
)

# Discourse: every column that may refer to an upload, and what else its row needs.

UPLOAD_COLUMNS: dict[tuple[str, str], dict[str, str]] = {
    ("upload_references", "upload_id"):
        {"target_type": "'Post'", "target_id": "(random() * 1000000)::int"},
    ("users", "uploaded_avatar_id"): {"username": RANDOM},
    ("user_avatars", "custom_upload_id"): {"user_id": "1"},
    ("user_avatars", "gravatar_upload_id"): {"user_id": "1"},
    ("user_profiles", "profile_background_upload_id"): {"user_id": "(random() * 1000000)::int"},
    ("user_profiles", "card_background_upload_id"): {"user_id": "(random() * 1000000)::int"},
    ("user_exports", "upload_id"): {"file_name": "'x'", "user_id": "1"},
    ("topics", "image_upload_id"): {"title": "'x'"},
    ("posts", "image_upload_id"): {"topic_id": "1", "raw": "''", "cooked": "''"},
    ("post_uploads", "upload_id"): {"post_id": "(random() * 1000000)::int"},
    ("categories", "uploaded_logo_id"): {"name": "'x'", "user_id": "1"},
    ("categories", "uploaded_logo_dark_id"): {"name": "'x'", "user_id": "1"},
    ("categories", "uploaded_background_id"): {"name": "'x'", "user_id": "1"},
    ("categories", "uploaded_background_dark_id"): {"name": "'x'", "user_id": "1"},
    ("badges", "image_upload_id"): {"name": "'x'", "badge_type_id": "1"},
    ("groups", "flair_upload_id"): {"name": "'x'"},
    ("custom_emojis", "upload_id"): {"name": "'x'"},
    ("theme_fields", "upload_id"): {"theme_id": "1", "name": "'x'", "value": "''"},
    ("theme_svg_sprites", "upload_id"): {"theme_id": "1"},
    ("chat_uploads", "upload_id"): {"chat_message_id": "1"},
}
UPLOADS = (f"insert into uploads (user_id, original_filename, filesize, url, sha1) "
           f"select 1, 'f', 1, '//cdn/original/1X/' || {RANDOM} || '.png', {RANDOM} "
           "from generate_series(1, 12)")
COPIES = [
    "insert into optimized_images (sha1, extension, width, height, upload_id, url) "
    f"select {RANDOM}, 'png', 1, 1, id, '//cdn/optimized/1X/' || {RANDOM} from uploads "
    "order by random() limit 3",
    "insert into topic_thumbnails (upload_id, max_width, max_height) "
    "select id, 1, 1 from uploads order by random() limit 3",
    "insert into user_uploads (upload_id, user_id) select id, 1 from uploads "
    "order by random() limit 3 on conflict do nothing",
]
DISCOURSE = Application(
    title="Discourse", shape="discourse", path="discourse",
    fill=[UPLOADS, *COPIES],
    acts=[
        *[act for (table, column), rest in UPLOAD_COLUMNS.items()
          for act in refers(table, column, "uploads", rest)],
        *refers("site_settings", "value", "uploads", {"name": "'logo'", "data_type": "18"}),
        *refers("theme_settings", "value", "uploads",
                {"name": "'logo'", "data_type": "6", "theme_id": "1"}),
        "insert into site_settings (name, data_type, value) "
        "select 'number', 3, id from uploads order by random() limit 2",
        "insert into site_settings (name, data_type, value) values ('title', 1, 'no number')",
        *COPIES,
    ],
    dead={"uploads": "select u.id from uploads as u where " + " and ".join([
        *[f"not exists (select from {table} as r where r.{column} = u.id)"
          for table, column in UPLOAD_COLUMNS],
        "not exists (select from site_settings as s where s.data_type = 18 "
        "and s.value = u.id::text)",
        "not exists (select from theme_settings as s where s.data_type = 6 "
        "and s.value = u.id::text)",
    ])},
    objects="select 's3://bucket' || substr(url, 6) from uploads union all "
            "select 's3://bucket' || substr(url, 6) from optimized_images",
    left_over=[f"select id from {table} where upload_id not in (select id from uploads)"
               for table in ("optimized_images", "topic_thumbnails", "user_uploads")],
    waits="collect =>",
)

# Gitea

GITEA = Application(
    title="Gitea and Forgejo: packages", shape="gitea", path="gitea",
    fill=["insert into package_blob (size, hash_md5, hash_sha1, hash_sha256, hash_sha512, "
          f"created_unix) select 1, h, rpad(h, 40, '0'), h || {RANDOM}, rpad(h, 128, '0'), 0 "
          f"from (select i, {RANDOM} as h from generate_series(1, 12) as i) as n"],
    acts=[
        *refers("package_file", "blob_id", "package_blob", {
            "version_id": "(random() * 1000000)::int", "name": "'f'", "lower_name": RANDOM,
            "created_unix": "0"}),
        "insert into package_property (ref_type, ref_id, name, value) "
        "select 0, id, 'digest', hash_sha256 from package_blob order by random() limit 1",
    ],
    dead={"package_blob":
          "select b.id from package_blob as b left join package_file as f on f.blob_id = b.id "
          "where f.id is null"},
    objects="select format('s3://bucket/packages/%s/%s/%s', substr(hash_sha256, 1, 2), "
            "substr(hash_sha256, 3, 2), hash_sha256) from package_blob",
)

# Mattermost

FILES = "(select json_agg(id)::text from (select id from fileinfo order by random() limit 2) as f)"


def has_files(table: str, rest: dict[str, str]) -> list[str]:
    return [
        f"insert into {table} ({', '.join(rest)}, fileids) "
        f"select {', '.join(rest.values())}, {FILES}",
        f"update {table} set fileids = {FILES} where {some_of(table)}",
        f"update {table} set fileids = '[]' where {some_of(table)}",
        f"update {table} set message = 'edited'",
        f"delete from {table} where {some_of(table)}",
    ]


MATTERMOST = Application(
    title="Mattermost", shape="mattermost", path="mattermost",
    fill=["insert into fileinfo (id, path, thumbnailpath, previewpath, size) "
          "select h, 'f/' || h, case when i % 2 = 0 then 't/' || h else '' end, "
          "case when i % 3 = 0 then 'p/' || h else '' end, 1 "
          f"from (select i, left({RANDOM}, 26) as h from generate_series(1, 10) as i) as n"],
    acts=[
        *has_files("posts", {"id": f"left({RANDOM}, 26)", "message": "''"}),
        *has_files("drafts", {"userid": f"left({RANDOM}, 26)", "channelid": "'c'"}),
        *has_files("scheduledposts", {
            "id": f"left({RANDOM}, 26)", "userid": "'u'", "channelid": "'c'", "scheduledat": "0"}),
    ],
    dead={"fileinfo": """
        select id from fileinfo as f where not exists (
            select from (
                select fileids from posts union all select fileids from drafts
                union all select fileids from scheduledposts
            ) as m
            where m.fileids::jsonb ? f.id
        )"""},
    objects="select 's3://bucket/' || u from fileinfo, "
            "unnest(array[path, nullif(thumbnailpath, ''), nullif(previewpath, '')]) as u "
            "where u is not null",
    waits="$$array[",
)

# Mastodon

PARTS = "array_to_string(array(select substr(id::text, i, 3) " \
        "from generate_series(1, length(id::text), 3) as i), '/')"
MASTODON = Application(
    title="Mastodon", shape="mastodon", path="mastodon",
    fill=[
        "insert into accounts (id, avatar_file_name, header_file_name) "
        f"select (random() * 1e17)::bigint + 1e17::bigint, {RANDOM} || '.png', "
        f"case when random() < 0.5 then {RANDOM} || '.png' end from generate_series(1, 3)",
        "insert into media_attachments (file_file_name, file_file_size, account_id) "
        f"select {RANDOM} || '.png', 1, {one_of('accounts')} from generate_series(1, 10)",
    ],
    acts=[
        *["with s as (insert into statuses (account_id, ordered_media_attachment_ids) "
          f"select {one_of('accounts')}, array(select id from media_attachments "
          "order by random() limit 2) returning id, ordered_media_attachment_ids as ids) "
          "update media_attachments as m set status_id = s.id from s where m.id = any (s.ids)"] * 3,
        # An edit remembers what was there; the status has nothing of it then.
        *["with e as (insert into status_edits (status_id, ordered_media_attachment_ids) "
          "select id, ordered_media_attachment_ids from statuses order by random() limit 2 "
          "returning status_id), s as (update statuses set ordered_media_attachment_ids = '{}' "
          "where id in (select status_id from e)) update media_attachments set status_id = null "
          "where status_id in (select status_id from e)"] * 3,
        "update statuses set ordered_media_attachment_ids = array(select id from "
        f"media_attachments order by random() limit 1) where {some_of('statuses')}",
        f"update media_attachments set status_id = null where {some_of('media_attachments')}",
        f"update media_attachments set status_id = null where {some_of('media_attachments')}",
        f"update statuses set text = 'edited' where {some_of('statuses')}",
        "with s as (insert into scheduled_statuses (account_id) "
        f"values ({one_of('accounts')}) returning id) update media_attachments as m "
        f"set scheduled_status_id = s.id from s where m.id = {one_of('media_attachments')}",
        f"delete from scheduled_statuses where {some_of('scheduled_statuses')}",
        f"delete from status_edits where {some_of('status_edits')}",
        *[f"delete from statuses where {some_of('statuses')}"] * 3,
        f"update accounts set avatar_file_name = {RANDOM} where {some_of('accounts')}",
        f"delete from accounts where id = {one_of('accounts')} "
        "and (select count(*) from accounts) > 3",
    ],
    dead={"media_attachments": """
        select id from media_attachments
        where status_id is null and scheduled_status_id is null
            and id not in (
                select unnest(ordered_media_attachment_ids) from statuses
                union all select unnest(ordered_media_attachment_ids) from status_edits
            )"""},
    objects=f"""
        select 's3://bucket/media_attachments/files/' || {PARTS} || '/original/' || file_file_name
        from media_attachments
        union all
        select 's3://bucket/accounts/avatars/' || {PARTS} || '/original/' || avatar_file_name
        from accounts
        union all
        select 's3://bucket/accounts/headers/' || {PARTS} || '/original/' || header_file_name
        from accounts where header_file_name is not null""",
    waits="collect =>",
)

# Supabase

SUPABASE = Application(
    title="Supabase storage", shape="supabase", path="app",
    fill=[
        "insert into storage.buckets (id, name) values ('b1', 'b1'), ('b2', 'b2') "
        "on conflict do nothing",
        "insert into storage.objects (bucket_id, name, version, metadata) "
        f"select 'b' || 1 + i % 2, 'users/' || h || '.png', {RANDOM}, '{{\"size\": 7}}' "
        f"from (select i, {RANDOM} as h from generate_series(1, 10) as i) as n",
    ],
    acts=[
        "insert into profiles (avatar_path) "
        "select name from storage.objects order by random() limit 2",
        f"update profiles set avatar_path = {one_of('storage.objects', 'name')} "
        f"where {some_of('profiles')}",
        f"delete from profiles where {some_of('profiles')}",
        "update profiles set username = 'other'",
        *refers("documents", "object_id", "storage.objects"),
        "insert into messages (attachment_ids) select array_agg(id) from "
        "(select id from storage.objects order by random() limit 3) as o",
        "update messages set attachment_ids = attachment_ids[2:] "
        f"where {some_of('messages')}",
        f"delete from messages where {some_of('messages')}",
    ],
    dead={"storage.objects": """
        select o.id from storage.objects as o
        where not exists (select from profiles as p where p.avatar_path = o.name)
            and not exists (select from documents as d where d.object_id = o.id)
            and not exists (select from messages as m where o.id = any (m.attachment_ids))"""},
    objects="select format('s3://bucket/stub/%s/%s/%s', bucket_id, name, version) "
            "from storage.objects",
)

# Pulp


def content(kind: str) -> str:
    return ("(insert into core_content (pulp_id, pulp_type) "
            f"values (gen_random_uuid(), 'container.{kind}') returning pulp_id)")


ARTIFACT = """
    a as (insert into core_artifact (pulp_id, file, size, sha256)
        select gen_random_uuid(), 'artifact/' || h, 1, h from (select md5(random()::text) as h) as n
        returning pulp_id),
    ca as (insert into core_contentartifact (pulp_id, relative_path, artifact_id, content_id)
        select gen_random_uuid(), 'p', a.pulp_id, c.pulp_id from a, c returning pulp_id),
    ra as (insert into core_remoteartifact (pulp_id, url, content_artifact_id, remote_id)
        select gen_random_uuid(), 'https://r', ca.pulp_id, r.pulp_id from ca, core_remote as r)"""
PULP_BLOB = (f"with c as {content('blob')}, {ARTIFACT} "
             f"insert into container_blob (content_ptr_id, digest) select pulp_id, {RANDOM} from c")
PULP_MANIFEST = (
    f"with c as {content('manifest')}, {ARTIFACT}, "
    "m as (insert into container_manifest (content_ptr_id, digest, media_type, config_blob_id) "
    f"select pulp_id, {RANDOM}, 'image', {one_of('container_blob', 'content_ptr_id')} from c) "
    "insert into container_blobmanifest (manifest_id, manifest_blob_id) "
    "select c.pulp_id, b.id from c, lateral (select content_ptr_id as id from container_blob "
    "order by random() limit 2) as b")
PULP_LIST = (
    f"with c as {content('manifest')}, {ARTIFACT}, "
    "m as (insert into container_manifest (content_ptr_id, digest, media_type) "
    f"select pulp_id, {RANDOM}, 'list' from c) insert into container_manifestlistmanifest "
    "(architecture, image_manifest_id, manifest_list_id) select 'amd64', i.id, c.pulp_id "
    "from c, lateral (select content_ptr_id as id from container_manifest "
    "where media_type = 'image' order by random() limit 2) as i")
PULP_TAG = (
    f"with c as {content('tag')} insert into container_tag "
    f"(content_ptr_id, name, tagged_manifest_id) select c.pulp_id, {RANDOM}, m.id from c, "
    "lateral (select content_ptr_id as id from container_manifest order by random() limit 1) as m")
PULP_NEEDED = """
    with recursive needed(id) as (
        select content_id from core_repositorycontent
        union
        select u.used
        from needed as n
        join (
            select content_ptr_id as by, tagged_manifest_id as used from container_tag
            union all
            select manifest_list_id, image_manifest_id from container_manifestlistmanifest
            union all
            select manifest_id, manifest_blob_id from container_blobmanifest
            union all
            select content_ptr_id, config_blob_id from container_manifest
            where config_blob_id is not null
        ) as u on u.by = n.id
    ) """
PULP = Application(
    title="Pulp: container content", shape="pulp", path="pulp",
    fill=[
        "insert into core_repository (pulp_id, name) select gen_random_uuid(), 'r' "
        "on conflict do nothing",
        "insert into core_remote (pulp_id, name) select gen_random_uuid(), 'r' "
        "where not exists (select from core_remote)",
        *[PULP_BLOB] * 4, *[PULP_MANIFEST] * 3, PULP_LIST, *[PULP_TAG] * 2,
    ],
    acts=[
        PULP_BLOB, PULP_MANIFEST, PULP_LIST, PULP_TAG,
        *["insert into core_repositorycontent (pulp_id, content_id, repository_id) "
          "select gen_random_uuid(), c.pulp_id, r.pulp_id from core_content as c, "
          "core_repository as r order by random() limit 2"] * 3,
        f"update core_repositorycontent set content_id = {one_of('core_content', 'pulp_id')} "
        f"where {some_of('core_repositorycontent')}",
        *[f"delete from core_repositorycontent where {some_of('core_repositorycontent')}"] * 3,
        f"update container_tag set tagged_manifest_id = "
        f"{one_of('container_manifest', 'content_ptr_id')} where {some_of('container_tag')}",
        f"delete from container_blobmanifest where {some_of('container_blobmanifest')}",
    ],
    dead={
        "core_content": PULP_NEEDED
        + "select pulp_id from core_content where pulp_id not in (select id from needed)",
        "core_artifact": PULP_NEEDED
        + "select pulp_id from core_artifact where pulp_id not in (select artifact_id from "
          "core_contentartifact where content_id in (select id from needed))",
    },
    objects="select 's3://bucket/' || file from core_artifact",
)

# Quay

QUAY_BLOB = ("insert into imagestorage (uuid, image_size, content_checksum) "
             f"select {RANDOM}, 1, 'sha256:' || {RANDOM} || {RANDOM} from generate_series(1, 6)")
QUAY_MANIFEST = (
    "with m as (insert into manifest (repository_id, digest, media_type_id, manifest_bytes{more}) "
    f"select {one_of('repository')}, 'sha256:' || {RANDOM}, 1, '{{{{}}}}'{{values}} "
    "returning id, repository_id)")
QUAY_IMAGE = QUAY_MANIFEST.format(more="", values="") + (
    ", l as (insert into manifestlabel (repository_id, manifest_id, label_id) "
    "select repository_id, id, 1 from m), s as (insert into manifestsecuritystatus "
    "(repository_id, manifest_id, index_status, indexer_hash) select repository_id, id, 1, 'h' "
    "from m) insert into manifestblob (repository_id, manifest_id, blob_id) "
    "select m.repository_id, m.id, b.id from m, lateral (select id from imagestorage "
    "order by random() limit 2) as b")
QUAY_LIST = QUAY_MANIFEST.format(more="", values="") + (
    "insert into manifestchild (repository_id, manifest_id, child_manifest_id) "
    "select m.repository_id, m.id, c.id from m, lateral (select id from manifest "
    "order by random() limit 2) as c")
QUAY_SIGNATURE = QUAY_MANIFEST.format(
    more=", subject", values=f", {one_of('manifest', 'digest')}") + (
    "insert into tag (name, repository_id, manifest_id, hidden) "
    "select 'hidden', repository_id, id, true from m")
QUAY_NEEDED = """
    with recursive needed(id) as (
        select manifest_id from tag where manifest_id is not null
        union
        select u.used
        from needed as n
        join (
            select manifest_id as by, child_manifest_id as used from manifestchild
            union all
            select r.id, s.id from manifest as r join manifest as s on s.digest = r.subject
        ) as u on u.by = n.id
    ) """
QUAY = Application(
    title="Quay", shape="quay", path="quay",
    fill=[
        "insert into repository (name) values ('r')",
        "insert into imagestoragelocation (name) values ('s3') on conflict do nothing",
        QUAY_BLOB,
        "insert into imagestorageplacement (storage_id, location_id) select s.id, l.id "
        "from imagestorage as s, imagestoragelocation as l on conflict do nothing",
        *[QUAY_IMAGE] * 4, QUAY_LIST, QUAY_SIGNATURE,
    ],
    acts=[
        QUAY_IMAGE, QUAY_LIST, QUAY_SIGNATURE,
        *refers("tag", "manifest_id", "manifest", {"name": "'t'", "repository_id": "1"}),
        f"delete from tag where {some_of('tag')}",
        f"delete from tag where {some_of('tag')}",
        *refers("uploadedblob", "blob_id", "imagestorage", {"repository_id": "1"}),
    ],
    dead={
        "manifest": QUAY_NEEDED
        + "select id from manifest where id not in (select id from needed)",
        "imagestorage": QUAY_NEEDED
        + "select id from imagestorage where id not in (select blob_id from manifestblob "
          "where manifest_id in (select id from needed) union all "
          "select blob_id from uploadedblob)",
    },
    objects="select 's3://bucket/sha256/' || substr(content_checksum, 8, 2) || '/' "
            "|| substr(content_checksum, 8) from imagestorage",
)

# GitLab

REPOSITORY = "top_level_namespace_id, repository_id"
GITLAB_MANIFEST = (
    "with r as (select top_level_namespace_id as n, id as r from repositories "
    "order by random() limit 1), m as (insert into manifests (" + REPOSITORY
    + ", total_size, schema_version, media_type_id, configuration_blob_digest, digest, payload, "
    "subject_id) select r.n, r.r, 1, 2, 1, {config}, sha256(random()::text::bytea), '', {subject} "
    "from r returning top_level_namespace_id as n, repository_id as r, id)")
GITLAB_IMAGE = GITLAB_MANIFEST.format(config=one_of("blobs", "digest"), subject="null") + (
    "insert into layers (" + REPOSITORY + ", manifest_id, size, media_type_id, digest) "
    "select m.n, m.r, m.id, 1, 1, b.digest from m, lateral (select digest from blobs "
    "order by random() limit 2) as b")
GITLAB_LIST = GITLAB_MANIFEST.format(config="null", subject="null") + (
    "insert into manifest_references (" + REPOSITORY + ", parent_id, child_id) "
    "select m.n, m.r, m.id, c.id from m, lateral (select id from manifests as o "
    "where o.repository_id = m.r and o.subject_id is null order by random() limit 2) as c")
GITLAB_SIGNATURE = GITLAB_MANIFEST.format(
    config=one_of("blobs", "digest"),
    subject="(select o.id from manifests as o where o.repository_id = r.r "
            "order by random() limit 1)") + "select from m"


def any_of_gitlab(table: str) -> str:
    return f"id = any (array(select id from {table} order by random() limit 2))"


GITLAB_NEEDED = """
    with recursive needed(id) as (
        select manifest_id from tags
        union
        select u.used
        from needed as n
        join (
            select parent_id as by, child_id as used from manifest_references
            union all
            select subject_id, id from manifests where subject_id is not null
        ) as u on u.by = n.id
    ) """
GITLAB = Application(
    title="GitLab's container registry", shape="gitlab", path="gitlab",
    fill=[
        "insert into top_level_namespaces (id, name) values (1, 'a'), (2, 'b') "
        "on conflict do nothing",
        "insert into repositories (id, top_level_namespace_id, name, path) "
        "values (1, 1, 'a', 'a/a'), (2, 2, 'b', 'b/b') on conflict do nothing",
        "insert into blobs (size, media_type_id, digest) select 1, 1, "
        "'\\x01' || sha256(random()::text::bytea) from generate_series(1, 6)",
        "insert into repository_blobs (" + REPOSITORY + ", blob_digest) "
        "select 1, 1, digest from blobs order by random() limit 4 on conflict do nothing",
        *[GITLAB_IMAGE] * 4, GITLAB_LIST, GITLAB_SIGNATURE,
    ],
    acts=[
        GITLAB_IMAGE, GITLAB_LIST, GITLAB_SIGNATURE,
        *["insert into tags (" + REPOSITORY + f", manifest_id, name) "
          f"select {REPOSITORY}, id, {RANDOM} from manifests where subject_id is null "
          "order by random() limit 2"] * 2,
        f"update tags as t set manifest_id = (select m.id from manifests as m "
        "where m.repository_id = t.repository_id and m.subject_id is null "
        f"order by random() limit 1) where {any_of_gitlab('tags')}",
        *[f"delete from tags where {any_of_gitlab('tags')}"] * 2,
        f"delete from manifest_references where {any_of_gitlab('manifest_references')}",
    ],
    dead={
        "manifests": GITLAB_NEEDED
        + "select id from manifests where id not in (select id from needed)",
        "blobs": GITLAB_NEEDED
        + "select digest from blobs where digest not in ("
          "select l.digest from layers as l where l.manifest_id in (select id from needed) "
          "union all select m.configuration_blob_digest from manifests as m "
          "where m.configuration_blob_digest is not null and m.id in (select id from needed))",
    },
    objects="select format('s3://bucket/docker/registry/v2/blobs/sha256/%s/%s/data', "
            "substr(encode(digest, 'hex'), 3, 2), substr(encode(digest, 'hex'), 3)) from blobs",
)

APPLICATIONS = [
    RAILS, RAILS52, DJANGO_FILE, DJANGO_GENERIC, DISCOURSE, GITEA, MATTERMOST, MASTODON, SUPABASE,
    PULP, QUAY, GITLAB,
]
