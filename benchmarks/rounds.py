"""Rounds of requests: how often an operation waits for a remote storage, however long one request takes.

    python -m benchmarks.rounds [--keys 20000] [--subtasks 100] [--data DIRECTORY]

Requests of a storage in memory are held until all threads of this process sleep, then answered together: one round.
The number of rounds times the latency of a store is what the latency costs. It does not depend on the speed or the load
of the machine. Without `--data` the snapshots are generated; with it they are all those below the directory.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_CACHE = Path(__file__).resolve().parents[1] / ".cache"

_QUIET = 4
"""Times in a row that all threads are seen asleep before a round is answered."""


_IDLE = 50_000
"""Nanoseconds of CPU between two looks that are only those of looking."""


class Rounds:
    """Holds requests of this process until nothing else goes on, and then answers them together.

    Attributes:
        widths: number of requests of each round.
    """

    def __init__(self) -> None:
        self.widths: list[int] = []
        self._changed = threading.Condition()
        self._waiting = 0
        self._ended = False
        self._monitor = threading.Thread(target=self._answer, name="rounds", daemon=True)

    def __len__(self) -> int:
        """Return the number of rounds."""
        return len(self.widths)

    def __enter__(self) -> Rounds:
        self._monitor.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._monitor.join()

    def wait(self) -> None:
        """Wait as a request for the end of its round."""
        with self._changed:
            number = len(self.widths)
            self._waiting += 1
            self._changed.wait_for(lambda: self._ended or len(self.widths) > number)

    def _answer(self) -> None:
        quiet = spent = 0
        while not self._ended:
            time.sleep(0.001)
            now = time.process_time_ns() - time.thread_time_ns()
            is_quiet = now - spent < _IDLE and self._waiting and _is_asleep()
            quiet, spent = quiet + 1 if is_quiet else 0, now
            if quiet >= _QUIET:
                quiet = 0
                with self._changed:
                    self.widths.append(self._waiting)
                    self._waiting = 0
                    self._changed.notify_all()


def _is_asleep() -> bool:
    """Return whether all other threads of this process wait."""
    own = threading.get_native_id()
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208
        try:
            with open(f"/proc/self/task/{thread}/stat", "rb", buffering=0) as file:  # noqa: PTH123
                state = file.read().rpartition(b") ")[2][:1]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(thread) != own and state != b"S":
            return False
    return True
