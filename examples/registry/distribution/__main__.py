"""Serve a registry that gc.create_registry made, over HTTP, to any OCI client.

Where its blobs are is what gc.create_registry was told: the database knows, and so nothing has to
be said here. Encryption and authentication are left to what stands in front of it.
"""

import argparse
from pathlib import Path

import uvicorn

from distribution.app import create_app


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m distribution", description=__doc__)
    parser.add_argument("--dsn", default="", help="the database; default: libpq's environment")
    parser.add_argument("--uploads", type=Path, required=True, metavar="FOLDER",
                        help="for uploads under way; not inside the store, best on the same disk")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--connections", type=int, default=10, help="to the database, at most")
    options = parser.parse_args()
    app = create_app(options.dsn, options.uploads, options.connections)
    uvicorn.run(app, host=options.host, port=options.port, log_level="error",
                server_header=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
