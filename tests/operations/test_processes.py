from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from state_pipelines.errors import StateError, UsageError
from state_pipelines.operations.local_processes import Processes, Work, run_tasks


@dataclass(frozen=True)
class WhereAmI:
    number: int

    def run(self) -> tuple[int, int]:
        return self.number, os.getpid()


@dataclass(frozen=True)
class Copy:
    number: int
    threads: ClassVar[int] = 2

    def run(self) -> tuple[int, int, int]:
        return self.number, os.getpid(), threading.get_ident()


@dataclass(frozen=True)
class Fail:
    def run(self) -> None:
        raise UsageError("this piece fails")


@dataclass(frozen=True)
class Die:
    def run(self) -> None:
        os._exit(1)


@pytest.mark.slow
def test_processes_stay_for_the_next_pieces() -> None:
    with Processes(2) as shared:
        rounds = [shared.run([WhereAmI(each) for each in range(8)], "work") for _ in range(2)]
    assert [[number for number, _ in found] for found in rounds] == [list(range(8))] * 2
    processes = {process for found in rounds for _, process in found}
    assert os.getpid() not in processes
    assert len(processes) <= 2
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_threads_do_what_they_can() -> None:
    found = run_tasks([Copy(each) for each in range(8)], "copies", processes=2)
    assert [number for number, _, _ in found] == list(range(8))
    assert {process for _, process, _ in found} == {os.getpid()}
    assert threading.get_ident() not in {thread for _, _, thread in found}


@pytest.mark.slow
@pytest.mark.parametrize(("pieces", "count"), [([Copy(1), Copy(2), Copy(3)], 3), ([Copy(1), WhereAmI(2)], 2)])
def test_what_too_many_threads_would_do_is_done_by_processes(pieces: list[Work[tuple[int, ...]]], count: int) -> None:
    assert os.getpid() not in {found[1] for found in run_tasks(pieces, "work", processes=count)}


def test_one_process_is_this_one() -> None:
    assert run_tasks([WhereAmI(1), WhereAmI(2)], "work") == [(1, os.getpid()), (2, os.getpid())]


@pytest.mark.slow
def test_a_piece_that_fails_is_told_and_others_run_afterwards() -> None:
    with Processes(2) as shared:
        with pytest.raises(UsageError, match="this piece fails"):
            shared.run([Fail(), Fail()], "work")
        assert len(shared.run([WhereAmI(1), WhereAmI(2)], "work")) == 2


@pytest.mark.slow
def test_a_process_that_dies_is_told() -> None:
    with pytest.raises(StateError, match="work: a process died"):
        run_tasks([Die(), Die()], "work", processes=2)


@pytest.mark.slow
def test_a_process_that_dies_between_pieces_is_told() -> None:
    with Processes(2) as shared:
        ((_, process), *_) = shared.run([WhereAmI(1), WhereAmI(2)], "work")
        os.kill(process, signal.SIGKILL)
        time.sleep(1)
        with pytest.raises(StateError, match="work: a process died"):
            shared.run([WhereAmI(1), WhereAmI(2)], "work")


def share() -> None:
    run_tasks([WhereAmI(1), WhereAmI(2)], "work", processes=2)


@pytest.mark.slow
def test_a_spawned_process_that_has_processes_ends() -> None:
    process = multiprocessing.get_context("spawn").Process(target=share)
    process.start()
    process.join(60)
    assert process.exitcode == 0


@dataclass(frozen=True)
class Slow:
    file: str

    def run(self) -> None:
        time.sleep(1)
        Path(self.file).touch()


@pytest.mark.slow
def test_nothing_goes_on_behind_a_failure(tmp_path: Path) -> None:
    with Processes(2) as shared:
        shared.run([WhereAmI(1), WhereAmI(2)], "work")
        later = [Slow(str(tmp_path / "later")) for _ in range(9)]
        pieces: list[Work[None]] = [Slow(str(tmp_path / "begun")), Fail(), *later]
        with pytest.raises(UsageError, match="this piece fails"):
            shared.run(pieces, "work")
        left = sorted(tmp_path.iterdir())
        time.sleep(1.5)
        assert sorted(tmp_path.iterdir()) == left


@dataclass(frozen=True)
class Wait:
    ready: str

    def run(self) -> None:
        Path(self.ready, str(os.getpid())).touch()
        time.sleep(600)


def wait_in_processes(ready: str) -> None:
    run_tasks([Wait(ready), Wait(ready)], "work", processes=2)


@pytest.mark.slow
def test_processes_end_when_the_one_that_started_them_is_killed(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=wait_in_processes, args=(str(tmp_path),))
    process.start()
    while len(found := [int(each.name) for each in tmp_path.iterdir()]) < 2:
        assert process.is_alive()
        time.sleep(0.01)
    process.kill()
    process.join()
    # The test would not end if they went on.
    while any(map(is_there, found)):
        time.sleep(0.01)


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@dataclass(frozen=True)
class DieLater:
    def run(self) -> None:
        time.sleep(0.5)
        os._exit(1)


@pytest.mark.slow
def test_a_process_that_dies_after_a_failure_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    # Those that wait are cancelled by then.
    waiting = [Slow(str(tmp_path / "slow")) for _ in range(9)]
    pieces: list[Work[None]] = [DieLater(), Fail(), *waiting]
    with pytest.raises(UsageError, match="this piece fails"):
        run_tasks(pieces, "work", processes=2)


INTERRUPTED = """
import os, signal, sys, time
from concurrent.futures import ProcessPoolExecutor
from state_pipelines.operations import local_processes
from tests.operations.test_processes import WhereAmI

def interrupt_after(call):
    def interrupted(*arguments):
        value = call(*arguments)
        # The last one that was started is about to begin.
        time.sleep(0.03)
        os.killpg(0, signal.SIGINT)
        return value
    return interrupted

if __name__ == "__main__":
    PATCH
    try:
        local_processes.run_tasks([WhereAmI(each) for each in range(5)], "work", processes=2)
    except KeyboardInterrupt:
        sys.exit(signal.getsignal(signal.SIGINT) is signal.default_int_handler and 130)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "patch",
    [
        "ProcessPoolExecutor.submit = interrupt_after(ProcessPoolExecutor.submit)",
        "local_processes.as_completed = interrupt_after(local_processes.as_completed)",
    ],
    ids=["in the middle of it", "before they ignore it"],
)
def test_an_interrupt_while_processes_start_ends_the_work(tmp_path: Path, patch: str) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED.replace("PATCH", patch))
    # As of a terminal, which interrupts those that are starting, too.
    done = subprocess.run(
        [sys.executable, str(script)],
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stderr) == (130, "")
