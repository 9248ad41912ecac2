"""Running pieces of work in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeVar

from state_pipelines.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Result = TypeVar("Result", covariant=True)
Report = Callable[[int, int], None]
"""Is told how many pieces are done, and how many there are."""

SMALL = 64 << 20
"""Bytes of state below which starting processes takes longer than the work."""


class Work(Protocol[Result]):
    """A piece of work that can be sent to another process.

    One with an attribute `only_copies` that is true waits for files and checksums, so that a thread does it as well.
    """

    def run(self) -> Result:
        """Do it."""


def choose_processes(size: int) -> int:
    """How many processes suit `size` bytes of state: one, or one per core."""
    return 1 if size < SMALL else os.cpu_count() or 1


def run_pieces(
    pieces: Sequence[Work[Result]], what: str, *, processes: int = 1, report: Report | None = None
) -> list[Result]:
    """Run pieces of work; results in the order of the pieces.

    Args:
        pieces: the work.
        what: says what failed, when a process dies.
        processes: with more than one, they are started anew (`spawn`), so that the main module of a script must be
            guarded by `if __name__ == "__main__":`. They stay for the next pieces.
        report: is told of the progress.

    Raises:
        StateError: a piece failed; the others are not begun any more.
    """
    count = min(processes, len(pieces))
    if count <= 1:
        results = []
        for piece in pieces:
            results.append(piece.run())
            if report is not None:
                report(len(results), len(pieces))
        return results
    with _share(count if all(getattr(piece, "only_copies", False) for piece in pieces) else 0, processes) as pool:
        futures = [pool.submit(_run, piece) for piece in pieces]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                if report is not None:
                    report(done, len(pieces))
        except BrokenProcessPool as error:
            _start_processes.cache_clear()
            raise StateError(
                f"{what}: a process died", hint="It may have run out of memory; use fewer processes"
            ) from error
        finally:
            for future in futures:
                future.cancel()
        return [future.result() for future in futures]


@contextmanager
def _share(threads: int, processes: int) -> Iterator[Executor]:
    """Threads of their own, or else the processes of this process, which take about two seconds to start."""
    if threads:
        with ThreadPoolExecutor(threads) as pool:
            yield pool
    else:
        yield _start_processes(processes)


@cache
def _start_processes(count: int) -> ProcessPoolExecutor:
    # Forked processes would share the threads of Arrow and of storage clients, which do not survive that.
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))


def _run(piece: Work[Result]) -> Result:
    return piece.run()
