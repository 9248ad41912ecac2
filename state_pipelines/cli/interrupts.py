"""Interrupts (Ctrl-C) and requests to end (SIGTERM) that reach the command wherever they arrive."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

INTERRUPTED = 130
"""Exit code of a command that was interrupted, as shells expect it of SIGINT."""

TERMINATED = 143
"""Exit code of a command that was asked to end, as by `timeout` and Kubernetes: that of SIGTERM."""

_PAUSE = 0.02
"""Seconds between two looks at whether an interrupt has been lost."""

_LOOKS = 3
"""Number of looks at which nothing handles an interrupt, after which it is lost."""


class Interrupts:
    """The signals that a command has received.

    Attributes:
        received: number of the signal that ends the command; 0 as long as there is none.
    """

    def __init__(self) -> None:
        self.received = 0
        self._main = threading.main_thread().ident
        self._finished = threading.Event()
        self._watch: threading.Thread | None = None

    @property
    def exit_code(self) -> int:
        """Exit code of the command."""
        return TERMINATED if self.received == signal.SIGTERM else INTERRUPTED

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT."""
        self.received = self.received or number
        self.watch()
        raise KeyboardInterrupt

    def terminate(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM as an interrupt, by the handler of those: Spark cancels its jobs, starting processes waits."""
        if self.received and self._is_handled():
            # `timeout` sends the signal to the process, and to its group: files are being removed already.
            return
        self.received = number
        handler = signal.getsignal(signal.SIGINT)
        try:
            if callable(handler):
                handler(signal.SIGINT, frame)
                return
        except Exception as error:
            # The JVM of Spark may have received the signal too, and be gone.
            raise KeyboardInterrupt from error
        finally:
            self.watch()
        raise KeyboardInterrupt

    def watch(self) -> None:
        """Begin to repeat interrupts that are lost."""
        if self._watch is None:
            self._watch = threading.Thread(target=self._repeat, name="repeat lost interrupts", daemon=True)
            self._watch.start()

    def finish(self) -> None:
        """Repeat no interrupt any more."""
        self._finished.set()
        if self._watch is not None:
            self._watch.join()

    def _repeat(self) -> None:
        """Raise the interrupt again as often as it is lost.

        Compiled code calls back into Python, for instance while modules are imported or kernels are compiled, and may
        drop what that raises (`arrow::py::internal::InitPandasStaticData` imports pandas so). While files are removed
        after an interrupt, the main thread handles it.
        """
        looks = 0
        while not self._finished.wait(_PAUSE):
            looks = 0 if self._is_handled() else looks + 1
            if looks == _LOOKS:
                looks = 0
                # A signal, which ends waiting in the main thread too; `_thread.interrupt_main` only notes one.
                signal.pthread_kill(self._main or 0, signal.SIGINT)

    def _is_handled(self) -> bool:
        # Python 3.11 gives (type, value, traceback), later releases the exception.
        found: Any = sys._current_exceptions().get(self._main or 0)
        error = found[1] if isinstance(found, tuple) else found
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            if isinstance(error, KeyboardInterrupt):
                return True
            seen.add(id(error))
            error = error.__cause__ or error.__context__
        return False


@contextmanager
def keep_interrupts() -> Iterator[Interrupts]:
    """Raise interrupts, and requests to end, in the block until one reaches its end, and note which it was.

    Outside of the main thread, which alone receives signals, nothing changes; signals that are ignored stay so.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    chosen = {
        signal.SIGINT: (signal.default_int_handler, interrupts.interrupt),
        signal.SIGTERM: (signal.SIG_DFL, interrupts.terminate),
    }
    before = {}
    for number, (default, handler) in chosen.items():
        if signal.getsignal(number) == default:
            before[number] = signal.signal(number, handler)
    unraisable = sys.unraisablehook

    def forget(lost: sys.UnraisableHookArgs) -> None:
        if lost.exc_type is KeyboardInterrupt:
            # By the handler of Spark, for instance.
            interrupts.watch()
        else:
            unraisable(lost)

    sys.unraisablehook = forget

    def is_no_effect(record: logging.LogRecord) -> bool:
        # The client of Spark logs interrupts, and that its JVM is gone, with tracebacks, and raises them all the same.
        kind = None if record.exc_info is None else record.exc_info[0]
        return kind is None or not (interrupts.received or kind is KeyboardInterrupt)

    logging.getLogger().addFilter(is_no_effect)
    try:
        yield interrupts
    finally:
        interrupts.finish()
        logging.getLogger().removeFilter(is_no_effect)
        sys.unraisablehook = unraisable
        for number, former in before.items():
            signal.signal(number, former)
