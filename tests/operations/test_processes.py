from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import ClassVar

import pytest

from state_pipelines.errors import StateError, UsageError
from state_pipelines.operations.processes import run_pieces


@dataclass(frozen=True)
class WhereAmI:
    number: int

    def run(self) -> tuple[int, int]:
        return self.number, os.getpid()


@dataclass(frozen=True)
class Copy:
    number: int
    only_copies: ClassVar[bool] = True

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


def test_processes_stay_for_the_next_pieces() -> None:
    rounds = [run_pieces([WhereAmI(each) for each in range(8)], "work", processes=2) for _ in range(2)]
    assert [[number for number, _ in found] for found in rounds] == [list(range(8))] * 2
    processes = {process for found in rounds for _, process in found}
    assert os.getpid() not in processes
    assert len(processes) <= 2


def test_copies_are_made_by_threads() -> None:
    found = run_pieces([Copy(each) for each in range(8)], "copies", processes=2)
    assert [number for number, _, _ in found] == list(range(8))
    assert {process for _, process, _ in found} == {os.getpid()}
    assert threading.get_ident() not in {thread for _, _, thread in found}


def test_one_process_is_this_one() -> None:
    assert run_pieces([WhereAmI(1), WhereAmI(2)], "work") == [(1, os.getpid()), (2, os.getpid())]


def test_a_piece_that_fails_is_told_and_others_run_afterwards() -> None:
    with pytest.raises(UsageError, match="this piece fails"):
        run_pieces([Fail(), Fail()], "work", processes=2)
    assert len(run_pieces([WhereAmI(1), WhereAmI(2)], "work", processes=2)) == 2


def test_a_process_that_dies_is_told_and_others_are_started() -> None:
    with pytest.raises(StateError, match="work: a process died"):
        run_pieces([Die(), Die()], "work", processes=2)
    assert len(run_pieces([WhereAmI(1), WhereAmI(2)], "work", processes=2)) == 2
