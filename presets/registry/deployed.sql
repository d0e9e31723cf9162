-- Deployed: what clusters run is pinned, for a time, and pinned again as long as it is reported.
-- Who reports need not know the registry: an image is what a container runtime prints.

-- docker-pullable://registry.example:5000/acme/app:v1@sha256:… The first part is a host if it has a
-- dot or a colon, or is localhost; a digest counts more than a tag.
create function _parse_image(image text, out path text, out reference text)
    language plpgsql
    immutable
as $$
declare
    parts text[] := regexp_match(left(btrim(image), 1000),
        '^(?:[a-z-]+://)?(?:(?:[^/@]*[.:][^/@]*|localhost)/)?([^:@]+)(?::([^:@/]+))?(?:@(.+))?$');
begin
    path := parts[1];
    reference := coalesce(parts[3], parts[2], 'latest');
end;
$$;

comment on function _parse_image(text) is
    'The repository of an image, and its digest or tag; null: it is none.';


create function _deployed(images text[])
    returns table (image text, namespace_id bigint, repository_id bigint, tag text, id bigint)
    language sql
    stable
as $$
    select i.image, r.namespace_id, r.id, t.name, coalesce(t.manifest_id, m.id)
    from (select distinct u from unnest(images) as u where btrim(u) <> '') as i(image)
    cross join lateral registry._parse_image(i.image) as p
    left join registry.repositories as r on r.path = p.path and r.state = 'active'
    left join registry.tags as t on (t.namespace_id, t.repository_id, t.name)
        = (r.namespace_id, r.id, p.reference)
    left join registry.manifests as m on (m.namespace_id, m.repository_id, m.digest)
        = (r.namespace_id, r.id, case
            when registry._is_digest_text(p.reference) then registry.digest_bytes(p.reference)
        end)
$$;

comment on function _deployed(text[]) is
    'The tags by which images are named, and their manifests; null: it is not here.';


-- A cluster may report the image of a platform where pods name the list: so its lists are pinned
-- too.
create function _with_lists(namespace_id bigint, repository_id bigint, id bigint)
    returns setof bigint
    language sql
    stable
as $$
    with recursive upwards(id) as (
        select _with_lists.id
        union
        select l.parent_id
        from upwards as u
        join registry.manifest_references as l on (l.namespace_id, l.repository_id, l.child_id)
            = (_with_lists.namespace_id, _with_lists.repository_id, u.id)
    )
    select u.id from upwards as u limit 1000
$$;

comment on function _with_lists(bigint, bigint, bigint) is
    'A manifest, and the lists that it is in.';


create function _halfway(since timestamptz, until timestamptz)
    returns timestamptz
    language sql
    immutable
    parallel safe
    return case when isfinite(until) then since + (until - since) / 2 else until end;

comment on function _halfway(timestamptz, timestamptz) is
    'When half of a time is over; of one without an end, never.';


create function _pins_of(images text[])
    returns table (image text, collection text, key text)
    language sql
    stable
as $$
    select o.image, k.collection, format('(%s,%s,%s)', o.namespace_id, o.repository_id, k.part)
    from registry._deployed(images) as o
    left join lateral (
        select 'manifest', format('%s', l)
        from registry._with_lists(o.namespace_id, o.repository_id, o.id) as l
        union all
        select 'tag', o.tag where o.tag is not null
    ) as k(collection, part) on o.id is not null
$$;

comment on function _pins_of(text[]) is
    'What is pinned for images: manifests, the lists that they are in, and the tags by which they '
    'are named. Without a collection: the image is not here.';


create function _is_pinned_by(holder text, collection text, key text, at_least timestamptz)
    returns boolean
    language sql
    stable
as $$
    select exists (
        select from gc.pins as p
        where md5(p.key) = md5(_is_pinned_by.key) and p.key = _is_pinned_by.key
            and (p.collection, p.holder) = (_is_pinned_by.collection, _is_pinned_by.holder)
            and p.until >= at_least
    )
$$;

comment on function _is_pinned_by(text, text, text, timestamptz) is
    'Whether this holder has pinned a row for so long.';


-- Pins that have more than half of their time left are not written again.
create function _pin_deployed(images text[], collection text, holder text, until timestamptz)
    returns void
    language plpgsql
    volatile
as $$
begin
    perform from gc.pin(collection, array(
        select distinct p.key from registry._pins_of(images) as p
        where p.collection = _pin_deployed.collection and not registry._is_pinned_by(
            holder, p.collection, p.key, registry._halfway(clock_timestamp(), until))
    ), 'deployed', until, holder);
end;
$$;

comment on function _pin_deployed(text[], text, text, timestamptz) is
    'Pins what images need of a collection.';


-- A tag by itself, too: a review that had found its manifest without a pin, and that has locked the
-- tag, is waited for. So what is pinned is looked at in the end, by a statement of its own: a tag
-- may have gone, or been moved, and a manifest, too.
create function report_deployed(
    holder text, images text[], until timestamptz default now() + interval '1 day'
)
    returns table (image text, is_pinned boolean)
    language plpgsql
    volatile
as $$
declare
    moment timestamptz := clock_timestamp();
begin
    perform registry._pin_deployed(images, 'manifest', holder, until);
    perform registry._pin_deployed(images, 'tag', holder, until);
    return query
        select p.image, bool_and(
            p.collection is not null
            and registry._is_pinned_by(holder, p.collection, p.key, moment))
        from registry._pins_of(images) as p
        group by p.image
        order by p.image;
end;
$$;

comment on function report_deployed(text, text[], timestamptz) is
    'Pins what a cluster runs, for the holder, until then: images as a container runtime prints '
    'them, host/acme/app@sha256:… Returns which of them are pinned; false: it is not here.';
