"""Tasks run in processes, or threads, of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

from state_pipelines.errors import StateError
from state_pipelines.storage.locations import Threads
from state_pipelines.storage.resolution import list_storage_options, use_storage_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import FrameType

    from state_pipelines.keyed.keyed_file import KeyedFile

Result = TypeVar("Result", covariant=True)
Runner = Callable[["Sequence[Work[Any]]", str], list[Any]]
"""Function that runs tasks and returns their results in order; the text begins the message if a worker fails."""

Report = Callable[[int, int], None]
"""Receives how many tasks are done, and how many there are."""

SMALL = 64 << 20
"""Bytes of state below which starting processes takes longer than the work."""


COPY_THREADS = 64
"""Number of threads that can wait for files and checksums at a time."""

KERNEL_THREADS = 4
"""Number of threads that can run kernels, which release the interpreter, before they often wait for it."""


class Work(Protocol[Result]):
    """A task that can be sent to another process.

    Its optional attribute `in_flight` is the number of such tasks that threads of one process should run concurrently,
    because they wait for a storage. Its optional attribute `threads` is the number of such tasks that can run
    concurrently in threads, which start at once; other tasks hold the interpreter lock, so they run in processes.
    """

    def run(self) -> Result:
        """Do the work of the task."""


def count_kernel_threads(files: Iterable[KeyedFile]) -> int:
    """Return `Work.threads` of a task that only finds the records of these files.

    Compiled kernels release the interpreter lock. If Python code reads one of the files, the number is 1.
    """
    return KERNEL_THREADS if all(each.by_kernels for each in files) else 1


def choose_processes(size: int) -> int:
    """Choose the number of processes for `size` bytes of state: one for little state, else one for each core."""
    return 1 if size < SMALL else os.cpu_count() or 1


class Processes:
    """Processes that share tasks: started when they are first needed, ended with the block.

    Starting a process takes about two seconds, so keep them for all stages of an operation; tasks for which threads are
    enough start none. Processes are started from scratch (`spawn`), so the main module of a script must be guarded by
    `if __name__ == "__main__":`. With a count of one, this process does the work.

    Args:
        count: number of processes.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def run(self, tasks: Sequence[Work[Result]], what: str, *, report: Report | None = None) -> list[Result]:
        """Run tasks; return their results in the order of the tasks.

        Args:
            tasks: the tasks.
            what: beginning of the error message if a process dies.
            report: called after each task, with the number of finished tasks and the number of all tasks.

        Raises:
            StateError: a task failed; tasks that were not begun are not begun any more.
        """
        count = min(self._count, len(tasks))
        in_flight = min((getattr(task, "in_flight", 1) for task in tasks), default=1)
        if in_flight > max(1, count) and len(tasks) > 1:
            with Threads(min(in_flight, len(tasks))) as threads:
                return _share(threads, tasks, report)
        if count <= 1:
            results = []
            for task in tasks:
                results.append(task.run())
                if report is not None:
                    report(len(results), len(tasks))
            return results
        if count <= min(getattr(task, "threads", 1) for task in tasks):
            with Threads(count) as threads:
                return _share(threads, tasks, report)
        pool = self._pool
        if pool is None:
            # Starting the resource tracker unblocks the interrupt signal. So start it now: otherwise the first process
            # would start it in the block of `_hold_interrupts`, and would inherit the unblocked signal.
            resource_tracker.ensure_running()
            # Do not fork: threads of Arrow and of storage clients would not exist in the forked process.
            pool = ProcessPoolExecutor(
                self._count,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_begin,
                initargs=(list_storage_options(),),
            )
        # If a task fails, `_share` shuts the pool down, so keep it only after a success.
        self._pool = None
        try:
            results = _share(pool, tasks, report)
        except BrokenProcessPool as error:
            raise StateError(
                f"{what}: a process died", hint="It may have run out of memory; use fewer processes"
            ) from error
        self._pool = pool
        return results


def run_tasks(
    tasks: Sequence[Work[Result]], what: str, *, processes: int = 1, report: Report | None = None
) -> list[Result]:
    """Run tasks in processes that end with this call; arguments and errors are those of `Processes.run`."""
    with Processes(processes) as runner:
        return runner.run(tasks, what, report=report)


@contextmanager
def choose_runner(run: Runner | None, processes: int) -> Iterator[Runner]:
    """Yield the function that runs the tasks of an operation: `run`, or one that uses processes until the block ends.

    Args:
        run: runs tasks, such as `spark.tasks.run_tasks` with its session; `processes` is ignored then.
        processes: number of processes, see `Processes`; with one, this process does the work.
    """
    if run is not None:
        yield run
        return
    with Processes(processes) as shared:
        yield shared.run


def _share(pool: Executor, tasks: Sequence[Work[Result]], report: Report | None) -> list[Result]:
    try:
        with _hold_interrupts():
            futures = [pool.submit(_run, task) for task in tasks]
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            if report is not None:
                report(done, len(tasks))
    except BaseException:
        # No task may still write when files are removed after a failure. Let the pool itself cancel futures and wait:
        # if a process died while this thread cancelled them, the pool would fail and never complete them.
        pool.shutdown(cancel_futures=True)
        raise
    return [future.result() for future in futures]


@contextmanager
def _hold_interrupts() -> Iterator[None]:
    """Delay an interrupt (SIGINT) until the end of the block, in which processes are started.

    An interrupt while a process starts would leave futures that no process works on. Processes and threads that are
    started in the block inherit the blocked signal: a terminal sends the interrupt to all processes, and it would end a
    process that does not ignore it yet (`_begin`).
    """
    held: list[tuple[int, FrameType | None]] = []
    # Without a Python handler, an interrupt raises no exception in this thread that could be delayed.
    handler = signal.getsignal(signal.SIGINT)
    swapped = callable(handler) and threading.current_thread() is threading.main_thread()
    if swapped:
        # This thread blocks the signal, so the system may deliver it to another thread. Python would nevertheless call
        # the handler in this thread, so replace the handler.
        signal.signal(signal.SIGINT, lambda *call: held.append(call))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if swapped:
            signal.signal(signal.SIGINT, handler)
    for call in held:
        cast("Callable[[int, FrameType | None], object]", handler)(*call)


def _begin(storage_options: Mapping[str, Mapping[str, Any]]) -> None:
    use_storage_options(storage_options)
    # A terminal sends an interrupt to every process of a command. Only the parent reacts, and ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Watch the parent in a thread: otherwise a child would not notice that its parent was killed, since it holds both
    # ends of the pipe from which it gets work.
    threading.Thread(target=_end_with_parent, name="end with parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(task: Work[Result]) -> Result:
    return task.run()
