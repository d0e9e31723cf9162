"""Say that the bucket belongs to this database, whatever its marker says.

After a move, a failover or a restore: the next runner replaces the marker, and every other database
that deleted objects there stops. Without a prefix: which markers there are, and what is wrong.
"""

import argparse

from blobgc import show
from blobgc.database import Database
from blobgc.errors import SUCCESS

GRANT = "operator"

MARKERS = """
select m.prefix, m.epoch, m.moved_at, case when m.adopting then 'the next runner adopts it'
    else m.problem end as problem
from gc.markers as m
order by m.prefix
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    show.arguments(parser)
    parser.add_argument("prefix", nargs="?", help="as a runner has it after --store")
    parser.add_argument("--reason", help="why, for those who wonder later")


def run(options: argparse.Namespace) -> int:
    database = Database(options.dsn)
    if options.prefix:
        database.call("select gc.adopt(%s, %s)", options.prefix, options.reason)
    show.rows(options, database.call(MARKERS))
    return SUCCESS
