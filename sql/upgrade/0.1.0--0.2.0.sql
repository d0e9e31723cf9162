-- From 0.1.0 to 0.2.0: what changes in tables that 0.1.0 had. New tables come by themselves.

alter table gc.settings
    add column pace numeric not null default 0.05
        constraint settings_pace_is_a_share check (pace > 0 and pace <= 1),
    add column gone_retention interval not null default '1 day'
        constraint settings_gone_retention_not_negative check (gone_retention >= '0'),
    add column brake_share numeric not null default 0.1
        constraint settings_brake_share_is_a_share check (brake_share > 0 and brake_share <= 1),
    add column brake_rows integer not null default 1000
        constraint settings_brake_rows_not_negative check (brake_rows >= 0),
    add column undo interval not null default '1 day'
        constraint settings_undo_not_negative check (undo >= '0')
        constraint settings_undo_not_endless check (undo <= '10 years'),
    add column failover text not null default 'ask'
        constraint settings_failover_known check (failover in ('ask', 'trusted')),
    add column durable_on text[] not null default '{}'
        constraint settings_durable_on_named check (
            array_position(durable_on, null) is null and array_position(durable_on, '') is null
        ),
    add column orphan_grace interval not null default '2 days'
        constraint settings_orphan_grace_not_negative check (orphan_grace >= '0')
        constraint settings_orphan_grace_not_endless check (orphan_grace <= '10 years');

-- A collection keeps the undo that it had, which was 0 if nobody had said anything.
alter table gc.collections
    alter column undo drop not null,
    alter column undo drop default,
    add column collect text not null default 'garbage'
        constraint collections_collect_known check (collect in ('garbage', 'deleted')),
    add column finalizers text[] not null default '{}',
    add column several boolean not null default false,
    add column restored jsonb not null default '{}'
        constraint collections_restored_object check (jsonb_typeof(restored) = 'object'),
    add column prepare text,
    add column complete text,
    add column scan_awaits text[],
    add column careful boolean not null default false;

alter table gc.unread_rows
    add column causes text[];

alter table gc.deletion_log
    add column causes text[];

-- The brake adds up what went in the last hour: these lines are of an earlier time.
alter table gc.totals
    add column handed_out bigint not null default 0,
    add column counted_at timestamptz not null default '-infinity';
alter table gc.totals
    alter column counted_at set default clock_timestamp();

-- PostgreSQL 15 and 16 cannot change what a column is generated from.
drop index gc.tombstones_due_idx;
alter table gc.tombstones
    drop column store,
    add column finalizers text[],
    add column causes text[],
    add column counted boolean not null default false;
alter table gc.tombstones
    add column store text not null generated always as (
        case when finalizers is null then '' else '/' || finalizers[1] || '/' end
        || left(split_part(url, '/', 1) || '//' || split_part(url, '/', 3), 128)
    ) stored;

-- Who was running is noted instead.
drop index gc.deleted_objects_deleted_at_idx;

-- They return more columns.
drop function gc.status();
