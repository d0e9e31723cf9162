"""Stores, a file for each kind, with all that differs between them inside.

A kind is a class derived from Store, in a file of this folder. It is found there by its scheme, so
nothing else is changed when one is added.
"""

import argparse
import contextlib
import importlib
import pkgutil
from collections.abc import Iterator

from blobgc.errors import Unavailable, Unusable, reason
from blobgc.stores.base import DELETED, RELEASED, SPARED, Care, Store, Tombstone
from blobgc.stores.file import FileStore

__all__ = ["DELETED", "RELEASED", "SPARED", "Care", "Store", "Tombstone", "kinds", "open_store",
           "open_stores", "with_one_line"]


def kinds() -> dict[str, type[Store]]:
    """Every kind of store, by its scheme. Its library is imported when one is opened."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    found = {}
    for kind in Store.__subclasses__():
        found[kind.scheme] = kind
    return dict(sorted(found.items()))


def open_store(prefix: str, options: argparse.Namespace) -> Store:
    """A prefix is a folder: gs://bucket/images does not reach into gs://bucket/images-2."""
    scheme, _, path = prefix.removesuffix("/").partition("://")
    kind = kinds().get(scheme)
    if kind is None or not kind.is_place(path):
        examples = ", ".join(each.example for each in kinds().values())
        raise Unusable(f"--store {ascii(prefix)[1:-1]}: it must be like one of {examples}, without "
                       "empty parts, '.' or '..'")
    try:
        return kind(prefix.removesuffix("/") + "/", options)
    except ImportError as error:
        raise Unusable(f"--store {prefix}: {reason(error)}: "
                       f"pip install 'blobgc[{kind.extra}]'") from error
    except Exception as error:  # The library's own: no credentials, no region.
        raise Unusable(f"--store {prefix}: {reason(error)}") from error


def open_stores(prefixes: list[str], options: argparse.Namespace) -> list[Store]:
    """All of them; two prefixes must not give one file two addresses, through a link perhaps."""
    stores: dict[str, Store] = {}
    for prefix in prefixes:
        store = open_store(prefix, options)
        stores[store.prefix] = store
    folders = [store for store in stores.values() if isinstance(store, FileStore)]
    for outer in folders:
        for inner in folders:
            if outer.contains(inner) and not inner.prefix.startswith(outer.prefix):
                raise Unusable(f"--store {outer.prefix} and {inner.prefix} are one folder, or one "
                               "is inside the other: spell them in the same way")
    return list(stores.values())


@contextlib.contextmanager
def with_one_line(store: Store) -> Iterator[None]:
    """For a command: what the store's library raises becomes one line and an exit code."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if store.status_of(error) is None:
            raise
        raise Unavailable(f"{store.prefix}: {reason(error)}") from error
