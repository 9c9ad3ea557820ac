"""How a process of paceline's own ends."""

from __future__ import annotations

import atexit
import gc


def end_quickly() -> None:
    """Let this process end without a search for garbage; for the main function of a program.

    An interpreter that ends looks for cycles among all objects there are, several times. With
    torch imported that takes half a second and more, for memory that the system takes back anyway.
    Files are closed and functions for the exit are called as ever.
    """
    atexit.register(gc.freeze)
