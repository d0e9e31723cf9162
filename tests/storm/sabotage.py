"""Faults that a storm must find: in each, a rule on which everything depends is taken out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sabotage:
    """Texts of the plain script, or of runner.py, and what takes the place of each."""

    name: str
    world: str
    changes: tuple[tuple[str, str], ...]
    of_runner: bool = False

    def apply(self, text: str) -> str:
        for old, new in self.changes:
            assert text.count(old) == 1, (
                f"{self.name}: stands {text.count(old)} times there; this has to follow the code")
            text = text.replace(old, new)
        return text


NOTHING = Sabotage("nothing", "", ())

SABOTAGES = [
    Sabotage(
        "the second look", "application",
        (("""    where q.ctid = any (this.locked)
        and (
            {kept}
        )
""",
          """    where q.ctid = any (this.locked) and false
"""),)),
    Sabotage(
        "the lease in confirm", "application",
        (("and t.worker = confirm.worker and t.due_at > clock_timestamp()\n        returning",
          "and t.worker = confirm.worker\n        returning"),)),
    # A tombstone that is leased again has another id, and nobody but its worker may confirm it.
    Sabotage(
        "whose lease", "registry",
        (("and t.worker = confirm.worker and t.due_at > clock_timestamp()\n        returning",
          "and t.due_at > clock_timestamp()\n        returning"),
         ("    if old = '{}' then\n        return taken;\n",
          "    if true then\n        return taken;\n"))),
    Sabotage(
        "the upload guard", "application",
        (("    perform gc._return_uploads(taken);\n", ""),)),
    Sabotage(
        "live rows in a claim", "application",
        (("    perform gc._drop_used(taken, moment + (select s.statement_timeout "
          "from gc.settings as s));\n",
          ""),)),
    Sabotage(
        "the row goes first", "registry",
        (("        for row in self.reviewing.rows(\"select * from gc.review(%s)\", "
          "self.options.batch):\n",
          """        doomed = self.reviewing.rows(
            "select url from gc.preview(null, %s) where url is not null and verdict = 'deleted'",
            self.options.batch)
        for row in doomed:
            if self.stores[0].flow.enter(1):
                try:
                    self.stores[0].delete([Tombstone(0, row["url"], None, None)])
                except OSError:
                    pass
                self.stores[0].flow.leave()
        for row in self.reviewing.rows("select * from gc.review(%s)", self.options.batch):
"""),),
        of_runner=True),
    Sabotage(
        "the lock of declared references", "application",
        (("select true from {target} as t where {t_is_m} for key share",
          "select true from {target} as t where {t_is_m}"),)),
    Sabotage(
        "gc._admit", "application",
        (("    perform gc._admit({name}, array_agg(o.url), array_agg(o.generation))\n"
          "    from (",
          "    perform from ("),)),
    Sabotage(
        "gc._settle", "application",
        (("when oldest is null and gc._durable_on() is null then '1' else newest\n",
          "when true then '1' else newest\n"),)),
    Sabotage(
        "what is deployed", "registry",
        (("select true, null::bigint, 'pinned by ' || o.holder where o.holder is not null\n"
          "        union all\n", ""),
         ("        ) and not registry._is_pinned(t.namespace_id, t.repository_id, "
          "t.manifest_id);\n",
          "        );\n"),
         ("        union all\n        select 'tag', o.tag where o.tag is not null\n", ""))),
    Sabotage(
        "tombstones of what the application deletes", "application",
        (("from {source} as {alias}{each}\nwhere {url} is not null$template$,",
          "from {source} as {alias}{each}\nwhere {url} is not null "
          "and current_setting('blobgc.reviewing', true) <> ''$template$,"),)),
    Sabotage(
        "pins in a review", "application",
        (("where {t_is_q} and p.collection = {name} and p.until > clock_timestamp())', c.words)",
          "where {t_is_q} and p.collection = {name} and false)', c.words)"),
         ("concat_ws(E'\\n', gc._spare_pinned_sql(c), gc._spare_mentioned_sql(c),",
          "concat_ws(E'\\n', gc._spare_mentioned_sql(c),"))),
    Sabotage(
        "pauses", "application",
        (("where p.what = _is_paused.what and p.until > clock_timestamp()",
          "where p.what = _is_paused.what and false"),)),
    Sabotage(
        "rows that a MERGE moves", "application",
        (("    where gc._follows_moves(c, w.relation, w.columns) and b.body <> ''\n",
          "    where false\n"),)),
    Sabotage(
        "pins of rows that get another key", "application",
        (("            perform gc._follow_holds(change);\n"
          "            perform gc._follow_pins(change);\n", ""),)),
    Sabotage(
        "pauses of deletes", "application",
        (("    where not gc._is_paused(p.collection, 'deletes')\n", ""),)),
    Sabotage(
        "the undo window of an object", "application",
        (("        'due_at', case when c.undo = '0' then 'now()'\n"
          "            else format('now() + interval %L', c.undo) end,",
          "        'due_at', 'now()',"),)),
    # Who finds another marker than its own watches it, and who watches compares as well.
    Sabotage(
        "the comparison of the marker", "registry",
        (("        when m.adopting then null\n        when m.above",
          "        when true then null\n        when m.above"),
         ("gc._is_same_server(m) or m.next_since >= until then", "true then"))),
]
