"""Log lines, for people or as JSON."""

import json
import logging
import sys
from datetime import datetime

from blobgc.errors import CONTROL

log = logging.getLogger("blobgc")


def time_of(record: logging.LogRecord) -> str:
    """With its zone: machines are in many of them."""
    return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")


class LineFormatter(logging.Formatter):
    """A url is whatever a row said: no control character of it reaches the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        text = CONTROL.sub(lambda found: ascii(found[0])[1:-1], record.getMessage())
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        return f"{time_of(record)} {record.levelname} {text}"


class JsonFormatter(logging.Formatter):
    """What a message was made from stands beside it, under its name."""

    def format(self, record: logging.LogRecord) -> str:
        fields = record.args if isinstance(record.args, dict) else {}
        line = {"time": time_of(record), "level": record.levelname.lower(),
                "message": record.getMessage(), **fields}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class StderrHandler(logging.Handler):
    """Writes to what sys.stderr is now: a bar puts itself there, and keeps below the lines."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def set_up(as_json: bool, level: str) -> None:
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter())
    logging.basicConfig(handlers=[handler])
    for library in ("psycopg", "google.auth"):  # They warn of what is tried again, or said by us.
        logging.getLogger(library).setLevel("ERROR")
    log.setLevel(level)
