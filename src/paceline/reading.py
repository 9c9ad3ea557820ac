"""Reading files that somebody else wrote: bounded in size, and never as anything but data.

A file of gigabytes, a few kilobytes of gzip that unpack to as much, and lists nested a million deep
are refused with a sentence, before they take the memory.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from unicodedata import category

_KEPT = "\n\t"


def read_bytes(path: Path, *, most_bytes: int) -> bytes:
    """The content of a file; ValueError with a sentence if it cannot be read or is too large.

    Args:
        path: The file.
        most_bytes: A file with more bytes is refused.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)  # pipes and devices have no size to ask for
    except (OSError, ValueError) as problem:  # a null character in the name is a ValueError
        raise ValueError(f"{path}: cannot be read: {_reason(problem)}") from None
    if len(data) > most_bytes:
        raise ValueError(f"{path}: has more than {_in_words(most_bytes)}, and is not read")
    return data


def unpack(data: bytes, origin: str, *, most_bytes: int) -> bytes:
    """What gzip packed; ValueError if it is damaged, or unpacks to too much.

    Args:
        data: The packed bytes.
        origin: What errors begin with: the file's name.
        most_bytes: What unpacks to more bytes is refused.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            unpacked = file.read(most_bytes + 1)
    except (EOFError, OSError, zlib.error):
        raise ValueError(f"{origin}: is cut off or damaged, or gzip did not write it") from None
    if len(unpacked) > most_bytes:
        raise ValueError(f"{origin}: unpacks to more than {_in_words(most_bytes)}, and is not read")
    return unpacked


def lines(file: io.TextIOBase, *, most_characters: int, longest: int) -> Iterator[str]:
    """The lines of a text file; ValueError if one of them, or all together, are too long.

    Args:
        file: The file.
        most_characters: Of all lines.
        longest: Of one line.
    """
    left = most_characters
    while line := file.readline(longest + 1):
        left -= len(line)
        if len(line) > longest:
            raise ValueError(f"a line has more than {longest:,} characters")
        if left < 0:
            raise ValueError(f"it unpacks to more than {_in_words(most_characters)}")
        yield line


def parse_json(text: str | bytes, *, with_infinity: bool = False) -> Any:
    """What JSON says; ValueError with a sentence if it is none, or is nested too deeply.

    Args:
        text: The text.
        with_infinity: Whether Infinity and NaN are read, too, which JSON does not have.
    """
    try:
        return json.loads(text, parse_constant=None if with_infinity else _refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None


def visible(text: str) -> str:
    r"""The text with every character seen: ``\x1b`` for an escape, ``\u202e`` for a turn.

    Args:
        text: Anything, lines and tabs included, which are kept.
    """
    if text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number of JSON")


def _reason(problem: Exception) -> str:
    return getattr(problem, "strerror", None) or str(problem)


def _in_words(num_bytes: int) -> str:
    return f"{num_bytes >> 20:,} MiB" if num_bytes >= 1 << 20 else f"{num_bytes:,} bytes"


def _shown(character: str) -> str:
    # No-break spaces and their like (Zs) are not "printable" to Python, and harm nobody.
    if character.isprintable() or character in _KEPT or category(character) == "Zs":
        return character
    return repr(character)[1:-1]
