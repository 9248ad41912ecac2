"""Requests of writers fail; `python -m tests.robustness.faults` does the same with every request in every way."""

from __future__ import annotations

import pytest

from tests.robustness.faulty_writers import WAYS, WRITERS, Tally, fail_requests, race, run_undisturbed


@pytest.mark.parametrize("writer", WRITERS)
def test_a_request_that_fails_leaves_the_input_and_no_half_snapshot(writer: str) -> None:
    count, _ = run_undisturbed(writer)
    tally = Tally()
    for index, way in enumerate(WAYS):
        # Another request for each way.
        number = (1 + 2 * index) * count // (2 * len(WAYS))
        fail_requests(writer, way, range(number, number + 1), tally)
    assert tally.findings == []
    assert tally.outcomes.total() == len(WAYS)
    assert {"finished", "refused", "interrupted", "killed"} <= set(tally.outcomes)


@pytest.mark.parametrize("writer", WRITERS)
def test_one_of_two_writers_to_one_target_refuses(writer: str) -> None:
    count, _ = run_undisturbed(writer)
    tally = Tally()
    race(writer, range(0, count, 8), tally)
    race(writer, range(count - 4, count), tally)
    assert tally.findings == []
