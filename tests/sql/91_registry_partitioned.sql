-- The registry preset, with tables of 64 partitions: the same behaviour.
\set partitions 64
\ir ../registry/scenarios.sql
