"""What goes wrong: how the process ends, and words that are the same for the same cause."""

import re

# How the process ends.
SUCCESS = 0
FAILED = 1  # Something failed that may work later.
UNUSABLE = 2  # It could not start, and will not before somebody changes something.
HELD_UP = 3
NOT_OURS = 4
DIFFERS = 5  # What the store has and what the rows say is not the same.

# What to do about an error of the database, by SQLSTATE.
HINTS = {
    "3F000": "(blobgc install)",
    "42883": "(blobgc upgrade)",
}
NO_RIGHT = "42501"  # Which right is missing depends on the command.

# What a terminal or a reader of logs takes for something else than text: also what turns its
# direction, and what has no width.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


class Unusable(Exception):
    """Why the program cannot start and what to do about it, in one sentence."""


class Unavailable(Exception):
    """What it needs is not there now, and may be later."""


def reason(error: BaseException) -> str:
    """The same words for the same cause, because failures are reported together by reason."""
    root = error  # The first of its causes that is Python's own, not a library's.
    while type(root).__module__ != "builtins" and (cause := root.__cause__ or root.__context__):
        root = cause
    text = root.strerror if isinstance(root, OSError) and root.strerror else str(root)
    # Google's errors begin with the request, in which the object is named; Azure's go on with the
    # number and time of the request, and leave the status out.
    text = re.sub(r"\b(DELETE|GET|POST|BATCH) \S+: ", "", text.partition("\n")[0])
    status = getattr(error, "status_code", None)
    if status and str(status) not in text:
        text = f"{status} {text}"
    return CONTROL.sub(" ", f"{type(error).__name__}: {text}").strip()[:500]


def one_line(text: object) -> str:
    """The first line of a message, without what a terminal would take for a command."""
    return CONTROL.sub("", str(text).partition("\n")[0])
