"""Requests of writers fail; `python -m tests.robustness.faults` does the same with every request in every way."""

from __future__ import annotations

import pytest

from tests.robustness.faulty_writers import WAYS, WRITERS, Tally, fail_requests, race, run_undisturbed


@pytest.mark.parametrize("writer", WRITERS)
def test_a_request_that_fails_leaves_the_input_and_no_half_snapshot(writer: str) -> None:
    count, _ = run_undisturbed(writer)
    tally = Tally()
    # The writers take turns with faults after which a request is repeated, two for each.
    repeated = [name for name, way in WAYS.items() if way.repeats]
    turn = 2 * list(WRITERS).index(writer)
    chosen = {repeated[(turn + each) % len(repeated)] for each in (0, 1)}
    ways = [name for name, way in WAYS.items() if not way.repeats or name in chosen]
    for index, way in enumerate(ways):
        # Another request for each way.
        number = (1 + 2 * index) * count // (2 * len(ways))
        fail_requests(writer, way, range(number, number + 1), tally)
    assert tally.findings == []
    assert tally.outcomes.total() == len(ways)
    assert {"finished", "refused", "interrupted", "killed"} <= set(tally.outcomes)


@pytest.mark.parametrize("writer", WRITERS)
def test_one_of_two_writers_to_one_target_refuses(writer: str) -> None:
    count, _ = run_undisturbed(writer)
    tally = Tally()
    race(writer, range(0, count, 16), tally)
    race(writer, range(count - 3, count), tally)
    assert tally.findings == []
