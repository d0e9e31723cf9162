"""Retention: judging the tags of a registry by its rules, and deleting those that are to go."""

import time
from collections.abc import Iterator
from statistics import median

from harness import (
    Comparison,
    Connection,
    Scale,
    alternate,
    connect,
    drop_database,
    execute,
    ratios,
)
from registries import create_registry

LIMIT = 10.0

# A thousand tags in each repository, of which the rules delete about half; some were pulled, one in
# twenty is pinned, one in a hundred is about another.
TAGS = """
insert into registry.namespaces (name) values ('acme');
insert into registry.repositories (namespace_id, path)
select n.id, 'acme/app' || r
from registry.namespaces as n cross join generate_series(1, {tags} / 1000) as r;
set session_replication_role = replica;
insert into registry.manifests (
    namespace_id, repository_id, digest, media_type, payload, subject_digest, total_size
)
select r.namespace_id, r.id, '\\x01'::bytea || sha256(int8send(n)), 'image', '',
    case when n % 100 = 0 then '\\x01'::bytea || sha256(int8send(n - 1)) end, 1000
from registry.repositories as r cross join generate_series(1, 1000) as n
order by r.id, n;
insert into registry.tags (namespace_id, repository_id, name, manifest_id, updated_at)
select m.namespace_id, m.repository_id, substr('vxz', 1 + (m.id % 3)::integer, 1) || m.id, m.id,
    now() - m.id % 40 * interval '1 day'
from registry.manifests as m;
insert into registry.pulls (namespace_id, repository_id, name, pulled_at)
select t.namespace_id, t.repository_id, t.name, now() - t.manifest_id % 20 * interval '1 day'
from registry.tags as t where t.manifest_id % 5 < 2;
insert into gc.pins (collection, key, holder, until, pinned_by)
select 'manifest', concat('(', m.namespace_id, ',', m.repository_id, ',', m.id, ')'), 'bench',
    'infinity', current_user
from registry.manifests as m where m.id % 20 = 7;
set session_replication_role = origin;
insert into registry.retention (action, repositories, tags, newest, within, by)
values ('delete', 'acme/*', '**', 50, '10 days', 'pushed'),
    ('delete', '!acme/web', 'x*', 10, '5 days', 'pulled'),
    ('delete', '**', '~z[0-9]+', 100, null, 'pulled'),
    ('delete', '~acme/app[0-9]+', '!v*', null, '20 days', 'pushed'),
    ('keep', '**', '{{v,x}}1*', 100, null, 'pushed'),
    ('keep', '**', '~v[0-9]*0', null, '30 days', 'pulled'),
    ('keep', 'acme/app1*', 'z*', 20, '30 days', 'pulled'),
    ('keep', '**', '!~[vx][12].*', 5, null, 'pushed'),
    ('immutable', '**', 'v*00', null, null, 'pushed'),
    ('immutable', 'acme/app7', '**', null, null, 'pushed');
"""


def of_tags(scale: Scale) -> Iterator[Comparison]:
    """Retention of 100,000 tags, a thousand in each repository, by ten rules of all kinds.

    registry.preview_retention says of each tag whether it stays, by which rule, and what it would
    free: against ten seconds, and against ten times what it takes for a tenth of the tags. Then
    gc.review deletes a batch of 200 of those that go; against the same among a tenth of
    the tags. Tables were analyzed. The last line is the preview where they never were: its plan
    must not depend on that.
    """
    tags = scale.of(100_000, 20_000)
    sizes = {tags: f"bench_retention_{tags}", tags // 10: f"bench_retention_{tags // 10}"}
    try:
        for size, name in sizes.items():
            fill(name, size)
        with connect(sizes[tags]) as many, connect(sizes[tags // 10]) as few:
            preview = alternate(scale.rounds, {
                "many": lambda: seconds(many, PREVIEW), "few": lambda: seconds(few, PREVIEW)})
            review = alternate(scale.rounds, {
                "many": lambda: seconds(many, REVIEW), "few": lambda: seconds(few, REVIEW)})
            execute(many, "delete from pg_statistic")
        with connect(sizes[tags]) as many:
            unknown = [seconds(many, PREVIEW) for _ in range(scale.rounds)]
        figures = f"{median(preview['many']):.1f} s and {median(preview['few']):.2f} s"
        yield Comparison(f"preview of retention, {tags:,} tags and ten rules", "10 s",
                         [s / LIMIT for s in preview["many"]], at_most=1, figures=figures)
        yield Comparison(f"preview of retention, {tags:,} tags", f"ten times {tags // 10:,}",
                         [r / 10 for r in ratios(preview["many"], preview["few"])], at_most=1.3,
                         figures=figures)
        figures = f"{median(review['many']):.2f} s and {median(review['few']):.2f} s"
        yield Comparison(f"review that deletes 200 of {tags:,} tags", f"of {tags // 10:,}",
                         ratios(review["many"], review["few"]), at_most=1.5, figures=figures)
        yield Comparison("preview of retention without statistics", "with them",
                         ratios(unknown, preview["many"]), at_most=1.5)
    finally:
        for name in sizes.values():
            drop_database(name)


PREVIEW = "select count(*) from registry.preview_retention()"
REVIEW = "select deleted from gc.review(200) where collection = 'tag'"


def fill(name: str, tags: int) -> None:
    with connect(create_registry(name)) as db:
        execute(db, TAGS.format(tags=tags))
        db.execute("vacuum analyze")


def seconds(db: Connection, query: str) -> float:
    begin = time.perf_counter()
    row = db.execute(query.encode()).fetchone()
    assert row is not None and row[0] is not None and int(str(row[0])) >= 200
    return time.perf_counter() - begin
