-- What of it is collected. This is all that there is of garbage collection.

select gc.track('blobs', name => 'blob',
    url => format('%I.blob_url(digest)', current_schema()),
    size => 'size',
    label => format('%I.digest_text(digest)', current_schema()),
    owned => array['repository_blobs'],
    events => '{
        "blob_insert": "blob_upload",
        "manifests_delete": "manifest_delete",
        "layers_delete": "layer_delete"
    }');

select gc.track('manifests', name => 'manifest',
    label => format('%I.digest_text(digest)', current_schema()),
    owned => array[
        'layers',
        'manifest_references(namespace_id, repository_id, parent_id)',
        'referrers(namespace_id, repository_id, subject_id)'
    ],
    events => '{
        "manifest_insert": "manifest_upload",
        "manifest_references_delete": "manifest_list_delete",
        "referrers_delete": "subject_delete",
        "tags_delete": "tag_delete",
        "tags_update": "tag_switch"
    }');

-- Retention decides which of them go: see expiring.sql.
select gc.track('tags', name => 'tag',
    label => format('%I._tag_label(namespace_id, repository_id, name, expired_by)',
        current_schema()),
    condition => 'expired_by is not null',
    owned => array['pulls'],
    events => '{"tag_update": "tag_expiry"}');
select gc.prepare('blob', format('%I._bury_uploads', current_schema())::regproc);
select gc.prepare('tag', format('%I._expire_tags', current_schema())::regproc);
select gc.prepare('manifest', format('%I._put_off_untagged', current_schema())::regproc);
select gc.complete('manifest', format('%I._complete_manifests', current_schema())::regproc);

-- What keeps a manifest goes before it, and links go last.
select gc.track('repositories', name => 'repository',
    label => 'path',
    -- is_abandoned, written out: so it is known when time makes it true, and that it never makes it
    -- true of one that is active.
    condition => $$state = 'deleting'
        or state = 'initial' and created_at <= now() - interval '2 minutes'$$,
    restored => '{"state": "active", "unfinished": false}',
    owned => array[
        'tags', 'manifest_references', 'referrers', 'layers', 'manifests', 'repository_blobs'
    ]);

-- One that is not filled within 2 minutes is reviewed then, one that is deleted at once. A tag that
-- has expired goes in the same review.
insert into gc.review_after_defaults
values ('repository_insert', '2 minutes'), ('repository_update', '0'), ('tag_expiry', '0')
on conflict do nothing;
