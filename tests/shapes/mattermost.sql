-- The shape of Mattermost's files: no foreign key at all. A file has the id of its post, and posts,
-- drafts and scheduled posts have ids of files as JSON in a text.
create schema mattermost;

create table mattermost.fileinfo (
    id varchar(26) primary key,
    creatorid varchar(26),
    postid varchar(26),
    createat bigint,
    updateat bigint,
    deleteat bigint,
    path varchar(512),
    thumbnailpath varchar(512),
    previewpath varchar(512),
    name varchar(256),
    extension varchar(64),
    size bigint,
    mimetype varchar(256),
    width integer,
    height integer,
    haspreviewimage boolean,
    minipreview bytea,
    content text,
    remoteid varchar(26),
    archived boolean not null default false,
    channelid varchar(26)
);
create index idx_fileinfo_update_at on mattermost.fileinfo (updateat);
create index idx_fileinfo_create_at on mattermost.fileinfo (createat);
create index idx_fileinfo_delete_at on mattermost.fileinfo (deleteat);
create index idx_fileinfo_postid_at on mattermost.fileinfo (postid);
create table mattermost.posts (
    id varchar(26) primary key,
    createat bigint,
    updateat bigint,
    deleteat bigint,
    userid varchar(26),
    channelid varchar(26),
    rootid varchar(26),
    originalid varchar(26),
    message varchar(65535),
    type varchar(26),
    props jsonb,
    hashtags varchar(1000),
    filenames varchar(4000),
    fileids varchar(300),
    hasreactions boolean,
    editat bigint,
    ispinned boolean,
    remoteid varchar(26)
);
create index idx_posts_create_at on mattermost.posts (createat);
create index idx_posts_root_id_delete_at on mattermost.posts (rootid, deleteat);
create table mattermost.drafts (
    createat bigint,
    updateat bigint,
    deleteat bigint,
    userid varchar(26),
    channelid varchar(26),
    rootid varchar(26) default '',
    message varchar(65535),
    props varchar(8000),
    fileids varchar(300),
    priority text,
    primary key (userid, channelid, rootid)
);
create table mattermost.scheduledposts (
    id varchar(26) primary key,
    createat bigint,
    updateat bigint,
    userid varchar(26) not null,
    channelid varchar(26) not null,
    rootid varchar(26),
    message varchar(65535),
    props varchar(8000),
    fileids varchar(300),
    priority text,
    scheduledat bigint not null,
    processedat bigint,
    errorcode varchar(200)
);
