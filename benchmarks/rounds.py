"""Rounds of requests: how often an operation waits for a remote storage, however long one request takes.

    python -m benchmarks.rounds [--keys 20000] [--subtasks 100] [WORK...]

Requests to a storage in memory are held until all threads of this process sleep, then answered together: one round.
The number of rounds times the latency of a store is what the latency costs, whatever the load of the machine. Each
snapshot is one operator with a small file, or database, per subtask.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections import deque
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem

from benchmarks.generate import OPERATOR, generate
from benchmarks.shapes import FORMATS, Shape
from state_pipelines import check, convert, diff, dump, open_snapshot, rescale
from state_pipelines.operations.auditing.audits import audit_snapshot
from state_pipelines.operations.inspect import inspect

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.snapshot import Snapshot

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

    def __enter__(self) -> Self:
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


class RoundsFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Storage in memory whose requests wait for the end of their round."""

    protocol = "rounds"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    rounds: ClassVar[Rounds | None] = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(str(path).removeprefix("rounds://")))


def _hold(name: str) -> None:
    method = getattr(MemoryFileSystem, name)

    @wraps(method)
    def request(self: RoundsFileSystem, *arguments: Any, **options: Any) -> Any:
        if self.rounds is not None:
            self.rounds.wait()
        return method(self, *arguments, **options)

    setattr(RoundsFileSystem, name, request)


for _name in ("cat_file", "info", "ls", "makedirs", "pipe_file", "cp_file", "mv", "rm", "rm_file"):
    _hold(_name)
register_implementation("rounds", RoundsFileSystem, clobber=True)


def _read(open: Callable[[], Snapshot], target: str) -> None:
    for operator in open().operators:
        deque(operator.batches_by_state(), 0)


WORKS: dict[str, Callable[[Callable[[], Snapshot], str], object]] = {
    "headers": lambda open, _: [each.survey() for each in open().operators],
    "all columns": _read,
    "counts of `inspect`": lambda open, _: inspect(open(), count=True),
    "`dump`": lambda open, _: deque(dump(open()), 0),
    "`diff` with itself": lambda open, _: diff(open(), open()),
    "`check` of itself": lambda open, _: check(open(), open(), scan=False),
    "`verify`": lambda open, _: audit_snapshot(open()),
    "`rescale --parallelism 3`": lambda open, target: rescale(open(), target, parallelism=3),
    "`convert --format canonical`": lambda open, target: convert(open(), target, "canonical"),
    "`convert --format keep`": lambda open, target: convert(open(), target, "keep"),
}
"""Works with the snapshots that a function opens, and the path of a new one."""


def main() -> None:
    """Print the rounds of the works that are named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="*", metavar="WORK", help=", ".join(WORKS))
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--subtasks", type=int, default=100)
    arguments = parser.parse_args()
    filesystem = RoundsFileSystem()
    print("| format | work | rounds | requests |\n| --- | --- | --- | --- |")  # noqa: T201
    for format in FORMATS:
        source = _CACHE / f"rounds-{arguments.keys}-{format}-{arguments.subtasks}"
        if not source.exists():
            generate(str(source), arguments.keys, Shape(format=format, parallelism=arguments.subtasks))
        for path in source.iterdir():
            filesystem.pipe_file(f"/{format}/{path.name}", path.read_bytes())
        for number, name in enumerate(arguments.works or WORKS):
            with Rounds() as rounds:
                RoundsFileSystem.rounds = rounds
                open = partial(open_snapshot, f"rounds:///{format}", uids=[OPERATOR])
                WORKS[name](open, f"rounds:///new/{format}-{number}")
                RoundsFileSystem.rounds = None
            print(f"| {format} | {name} | {len(rounds)} | {sum(rounds.widths):,} |")  # noqa: T201


if __name__ == "__main__":
    main()
