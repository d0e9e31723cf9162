"""Faults that a storm must find: in each, a rule on which everything depends is taken out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sabotage:
    """A text of the plain script, or of runner.py, and what takes its place."""

    name: str
    world: str
    old: str
    new: str
    of_runner: bool = False

    def apply(self, text: str) -> str:
        assert text.count(self.old) == 1, (
            f"{self.name}: stands {text.count(self.old)} times there; this has to follow the code")
        return text.replace(self.old, self.new)


class _Nothing(Sabotage):
    def apply(self, text: str) -> str:
        return text


NOTHING = _Nothing("nothing", "", "", "")

SABOTAGES = [
    Sabotage(
        "the second look", "application",
        old="""    where q.ctid = any (this.locked)
        and (
            {kept}
        )
""",
        new="""    where q.ctid = any (this.locked) and false
"""),
    Sabotage(
        "the lease in confirm", "registry",
        old="and t.worker = confirm.worker and t.due_at > clock_timestamp()\n        returning",
        new="and t.worker = confirm.worker\n        returning"),
    Sabotage(
        "whose lease, in confirm", "registry",
        old="and t.worker = confirm.worker and t.due_at > clock_timestamp()\n        returning",
        new="and t.due_at > clock_timestamp()\n        returning"),
    Sabotage(
        "the upload guard", "registry",
        old="    perform gc._return_uploads(taken);\n",
        new=""),
    Sabotage(
        "live rows in a claim", "application",
        old="    perform gc._drop_used(taken, moment + (select s.statement_timeout "
            "from gc.settings as s));\n",
        new=""),
    Sabotage(
        "the row goes first", "registry",
        old="        for row in self.reviewing.rows(\"select * from gc.review(%s)\", "
            "self.options.batch):\n",
        new="""        doomed = self.reviewing.rows(
            "select url from gc.preview(null, %s) where url is not null and verdict = 'garbage'",
            self.options.batch)
        for row in doomed:
            if self.stores[0].flow.enter(1):
                self.stores[0].delete([Tombstone(0, row["url"], None, None)])
                self.stores[0].flow.leave()
        for row in self.reviewing.rows("select * from gc.review(%s)", self.options.batch):
""",
        of_runner=True),
    Sabotage(
        "the lock of declared references", "application",
        old="select true from {target} as t where {t_is_m} for key share",
        new="select true from {target} as t where {t_is_m}"),
    Sabotage(
        "gc._admit", "application",
        old="    perform gc._admit({name}, array_agg(o.url), array_agg(o.generation))\n"
            "    from (",
        new="    perform from ("),
    Sabotage(
        "gc._settle", "application",
        old="when oldest is null and gc._durable_on() is null then '1' else newest\n",
        new="when true then '1' else newest\n"),
]
