"""Parts of a blob or of an upload, as headers say them."""

import re
from typing import NamedTuple

from distribution.errors import Refusal


class Part(NamedTuple):
    """Some bytes that follow each other: the first one's place, and how many they are."""

    start: int
    length: int

    def of(self, size: int) -> str:
        """As Content-Range says it."""
        return f"bytes {self.start}-{self.start + self.length - 1}/{size}"


def number(digits: str) -> int:
    """What digits say. Python refuses thousands of them, and nothing here has 10**18 bytes."""
    told = digits.lstrip("0")
    return int(told or "0") if len(told) <= 18 else 10**18


def requested_part(header: str | None, size: int) -> Part | None:
    """What a Range header asks for; None: everything. Several parts at once are not supported."""
    found = re.fullmatch(r"bytes=([0-9]*)-([0-9]*)", header or "")
    if not found or found.group(0) == "bytes=-":
        return None
    first, last = found.groups()
    if not first:
        start, end = max(size - number(last), 0), size
    else:
        start, end = number(first), min(number(last) + 1 if last else size, size)
    if start >= end:
        raise Refusal("SIZE_INVALID", 416, "the blob has no such bytes", header,
                      {"Content-Range": f"bytes */{size}"})
    return Part(start, end - start)


def first_byte(header: str) -> int | None:
    """Where the chunk of a Content-Range header begins; None: that is not such a header."""
    found = re.fullmatch(r"([0-9]+)-([0-9]+)", header)
    if not found or number(found.group(2)) < number(found.group(1)):
        return None
    return number(found.group(1))
