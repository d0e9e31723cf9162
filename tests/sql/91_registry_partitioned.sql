-- The registry preset, with tables of 8 partitions: the same behaviour.
\set partitions 8
\ir ../registry/scenarios.sql
