"""Online garbage collection for rows in PostgreSQL and the objects they stand for.

The connection comes from libpq's variables (PGHOST, PGSERVICE, ...) or from --dsn.
"""

import argparse
import importlib
import os
import pkgutil
import signal
import sys
from types import ModuleType

import blobgc
from blobgc import commands
from blobgc.errors import (
    FAILED,
    HINTS,
    NO_RIGHT,
    SUCCESS,
    UNUSABLE,
    Unavailable,
    Unusable,
    one_line,
)


def modules() -> dict[str, ModuleType]:
    """The commands, by name."""
    found = {}
    for module in pkgutil.iter_modules(commands.__path__):
        name = module.name.replace("_", "-")
        found[name] = importlib.import_module(f"{commands.__name__}.{module.name}")
    return found


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="blobgc", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"blobgc {blobgc.__version__}")
    subparsers = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", title="commands")
    for name, module in modules().items():
        text = module.__doc__ or ""
        command = subparsers.add_parser(
            name, help=text.partition("\n")[0].rstrip(".").replace("%", "%%"),
            description=text.replace("%", "%%"),
            formatter_class=argparse.RawDescriptionHelpFormatter)
        module.arguments(command)
        command.set_defaults(run=module.run, grant=getattr(module, "GRANT", "runner"))
    return parser


def main(arguments: list[str] | None = None) -> int:
    try:
        import psycopg
    except ImportError as error:
        return give_up(f"{one_line(error)}: pip install 'psycopg[binary]', or install libpq")
    options = make_parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except Unavailable as error:
        return give_up(str(error), FAILED)
    except BrokenPipeError:  # Whoever reads has read enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SUCCESS
    except ImportError as error:
        return give_up(f"{one_line(error)}: pip install {error.name or 'it'}")
    except (Unusable, OSError, psycopg.Error) as error:
        return give_up(f"{one_line(error)} {hint(error, options.grant)}".rstrip())
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def hint(error: Exception, grant: str) -> str:
    """What to do about it: what we know of its SQLSTATE, or what the database says."""
    sqlstate = getattr(error, "sqlstate", None) or ""
    told = getattr(getattr(error, "diag", None), "message_hint", None)
    if told and (sqlstate not in HINTS):
        return f"({one_line(told)})"
    if sqlstate == NO_RIGHT:
        return f"(select gc.grant_{grant}('the role');)" if grant else "(as the owner of blobgc)"
    return HINTS.get(sqlstate, "")


def give_up(why: str, code: int = UNUSABLE) -> int:
    print("blobgc:", why, file=sys.stderr)
    return code
