from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest

from state_pipelines.errors import UsageError
from state_pipelines.storage import create_file, join, resolve
from state_pipelines.storage.reading import (
    ARENAS,
    BUDGET,
    FIRST_REQUESTS,
    MEMORY_VARIABLE,
    REQUEST_SIZE,
    REQUESTS,
    REQUESTS_VARIABLE,
    WAITING,
    begin_together,
    do_together,
    read_ahead,
    read_ranges,
    scan_ahead,
)
from tests.storages import CountedFileSystem, empty_counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _no_bytes(item: int) -> int:
    return 0


def test_results_come_in_order() -> None:
    results = list(read_ahead(range(50), lambda number: number * number, empty_counted(), _no_bytes))
    assert results == [(number, number * number) for number in range(50)]


def test_many_are_in_flight_at_a_time() -> None:
    running = threading.Semaphore(0)
    together = threading.Barrier(REQUESTS, timeout=20)

    def read(number: int) -> int:
        # The first ones are read while the number ahead still grows.
        if number >= 2 * REQUESTS:
            together.wait()
        running.release()
        return number

    assert len(list(read_ahead(range(6 * REQUESTS), read, empty_counted(), _no_bytes))) == 6 * REQUESTS


def test_who_takes_one_has_not_read_much() -> None:
    seen: list[int] = []
    reading = read_ahead(range(50), seen.append, empty_counted(), _no_bytes)
    next(reading)
    reading.close()
    assert len(seen) <= FIRST_REQUESTS


def test_who_takes_a_large_one_has_read_two() -> None:
    seen: list[int] = []
    reading = read_ahead(range(50), seen.append, empty_counted(), lambda _: 4 * REQUEST_SIZE)
    next(reading)
    reading.close()
    assert len(seen) <= 2


def test_scans_of_the_next_items_have_begun() -> None:
    begun: list[int] = []

    def scan(number: int) -> Iterator[int]:
        begun.append(number)
        together.wait()
        yield from (number, -number)

    # The one whose turn it is, and three others.
    together = threading.Barrier(4, timeout=20)
    found = [(number, list(results)) for number, results in scan_ahead(range(8), scan, empty_counted(), 10 << 20)]
    assert found == [(number, [number, -number]) for number in range(8)]
    assert sorted(begun) == list(range(8))


def test_an_error_of_a_scan_is_raised_in_its_turn() -> None:
    def scan(number: int) -> Iterator[int]:
        yield 1 // (2 - number)

    scans = scan_ahead(range(5), scan, empty_counted(), 0)
    assert [list(next(scans)[1]) for _ in range(2)] == [[0], [1]]
    _, results = next(scans)
    with pytest.raises(ZeroDivisionError):
        next(results)
    scans.close()


def test_scans_that_have_begun_are_closed() -> None:
    begun: list[int] = []
    closed: list[int] = []

    def scan(number: int) -> Iterator[int]:
        begun.append(number)
        try:
            yield number
        finally:
            closed.append(number)

    scans = scan_ahead(range(50), scan, empty_counted(), 32 << 20)
    _, results = next(scans)
    assert next(results) == 0
    del results
    scans.close()
    # The second one may not have begun yet.
    assert sorted(closed) == sorted(begun)
    assert set(begun) <= {0, 1}


def test_scans_of_local_files_wait_for_their_turn(tmp_path: Path) -> None:
    begun: list[int] = []

    def scan(number: int) -> Iterator[int]:
        begun.append(number)
        return iter([number])

    next(scan_ahead(range(5), scan, resolve(str(tmp_path)), 0))
    assert begun == [0]


def test_works_are_done_at_the_same_time() -> None:
    together = threading.Barrier(WAITING, timeout=20)

    def work(number: int) -> int:
        together.wait()
        return number

    works = [partial(work, number) for number in range(2 * WAITING)]
    assert do_together(works, empty_counted()) == list(range(2 * WAITING))


def test_the_first_error_of_works_is_raised() -> None:
    with pytest.raises(ValueError, match="b"):
        do_together([partial(int, text) for text in ("1", "b", "c")], empty_counted())


def test_works_on_local_files_are_done_one_after_the_other(tmp_path: Path) -> None:
    threads = do_together([threading.get_ident] * 3, resolve(str(tmp_path)))
    assert threads == [threading.get_ident()] * 3


def test_scans_that_are_merged_have_all_begun() -> None:
    together = threading.Barrier(3, timeout=20)

    def scan(results: list[int]) -> Iterator[int]:
        together.wait()
        yield from results

    begun = begin_together([scan(each) for each in ([1, 2], [], [3])], empty_counted())
    assert [list(each) for each in begun] == [[1, 2], [], [3]]


def test_no_more_are_held_than_are_in_flight() -> None:
    begun: list[int] = []
    reading = read_ahead(range(100), begun.append, empty_counted(), _no_bytes)
    for number, _ in reading:
        assert len(begun) <= number + 1 + REQUESTS


def test_an_error_is_raised_in_its_turn() -> None:
    def read(number: int) -> int:
        return 1 // (3 - number)

    results = read_ahead(range(9), read, empty_counted(), _no_bytes)
    assert [next(results)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_local_files_are_not_read_ahead(tmp_path: Path) -> None:
    begun: list[int] = []
    reading = read_ahead(range(9), begun.append, resolve(str(tmp_path)), _no_bytes)
    next(reading)
    assert begun == [0]


def test_ranges_are_read_piece_by_piece() -> None:
    place = join(empty_counted(), "a")
    with create_file(place) as file:
        file.write(bytes(range(100)))
    CountedFileSystem.reads.clear()
    assert b"".join(read_ranges([(place, 5, 50), (place, 60, 61)], 10)) == bytes([*range(5, 50), 60])
    assert len(CountedFileSystem.reads) == 6


def test_the_bytes_that_are_held_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, "5")
    BUDGET.clear()
    held: list[int] = []
    for number, _ in read_ahead(range(50), lambda number: number, empty_counted(), lambda _: 1 << 20):
        held.append(BUDGET.held)
        assert number == len(held) - 1
    assert (max(held), BUDGET.most, BUDGET.held) == (5 << 20, 5 << 20, 0)


def test_no_more_bytes_are_alive_than_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, "4")
    BUDGET.clear()
    lock, alive, most = threading.Lock(), 0, 0

    def count(size: int) -> None:
        nonlocal alive, most
        with lock:
            alive += size
            most = max(most, alive)

    def read(number: int) -> npt.NDArray[np.uint8]:
        result = np.zeros(1 << 18, np.uint8)
        count(result.nbytes)
        weakref.finalize(result, count, -result.nbytes)
        return result

    for _, data in read_ahead(range(200), read, empty_counted(), lambda _: 1 << 18):
        # Of what was given before, nothing is left.
        assert alive <= BUDGET.held
        del data
    assert most <= BUDGET.most == 4 << 20


@pytest.mark.slow
def test_threads_share_few_arenas(tmp_path: Path) -> None:
    program = """
import ctypes, sys, threading
from tests.storages import empty_counted
from state_pipelines.storage.reading import do_together

together = threading.Barrier(16)

def work():
    data = bytearray(100_000)
    together.wait(20)
    return data

do_together([work] * 16, empty_counted())
library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
file = library.fopen(sys.argv[1].encode(), b"w")
library.malloc_info(0, ctypes.c_void_p(file))
library.fclose(ctypes.c_void_p(file))
"""
    if not hasattr(ctypes.CDLL(None), "malloc_info"):
        pytest.skip("only glibc has arenas")
    counts = []
    for limit in ({}, {"MALLOC_ARENA_MAX": "5"}):
        environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"} | limit
        file = tmp_path / "arenas.xml"
        subprocess.run([sys.executable, "-c", program, str(file)], env=environment, check=True)
        counts.append(file.read_text().count("<heap nr="))
    # A limit of the user stays.
    assert counts == [ARENAS, 5]


def test_readers_share_the_bound_and_each_of_them_advances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, "3")
    BUDGET.clear()
    readers = [read_ahead(range(9), lambda number: number, empty_counted(), lambda _: 1 << 20) for _ in range(5)]
    for number in range(9):
        assert [next(reader)[0] for reader in readers] == [number] * 5
    # The bound, and one item of each reader beyond it.
    assert BUDGET.most <= (3 + 5) << 20


def test_an_item_that_is_larger_than_the_bound_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, "1")
    BUDGET.clear()
    assert len(list(read_ahead(range(5), lambda number: number, empty_counted(), lambda _: 4 << 20))) == 5
    assert BUDGET.most == 4 << 20


def test_who_stops_gives_its_bytes_back() -> None:
    BUDGET.clear()
    reading = read_ahead(range(50), lambda number: number, empty_counted(), lambda _: 1 << 20)
    next(reading)
    reading.close()
    assert BUDGET.held == 0


def test_one_request_at_a_time_reads_nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REQUESTS_VARIABLE, "1")
    begun: list[int] = []
    reading = read_ahead(range(9), begun.append, empty_counted(), _no_bytes)
    next(reading)
    assert begun == [0]


@pytest.mark.parametrize("text", ["0", "many", "-1"])
def test_settings_that_are_no_numbers_are_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(REQUESTS_VARIABLE, text)
    with pytest.raises(UsageError, match=f"{REQUESTS_VARIABLE} is '{text}', not a number above 0"):
        list(read_ahead(range(9), abs, empty_counted(), _no_bytes))
