"""Interrupts (Ctrl-C) that reach the command wherever they arrive."""

from __future__ import annotations

import _thread
import sys
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

INTERRUPTED = 130
"""Exit code of a command that was interrupted, as shells expect it of SIGINT."""

_AGAIN = 0.02
"""Seconds after which a lost interrupt is repeated; by then the callback has returned."""


@contextmanager
def keep_interrupts() -> Iterator[None]:
    """Repeat interrupts that are lost in callbacks of compiled code, until one reaches the block.

    Such code calls back into Python, for instance while kernels are compiled, and drops what that raises: a
    `KeyboardInterrupt` would be printed, and the work would go on.
    """
    before = sys.unraisablehook

    def repeat(lost: sys.UnraisableHookArgs) -> None:
        if lost.exc_type is not KeyboardInterrupt:
            before(lost)
            return
        timer = Timer(_AGAIN, _thread.interrupt_main)
        timer.daemon = True
        timer.start()

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = before
