-- The registry preset, with plain tables.
\set partitions 0
\ir ../registry/scenarios.sql
