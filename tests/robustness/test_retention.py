"""Requests of retention fail; `python -m tests.robustness.faulty_retention` does it with every request in every way."""

from __future__ import annotations

from tests.robustness.faulty_retention import Tally, fail_requests, run_undisturbed
from tests.robustness.faulty_writers import WAYS


def test_a_request_that_fails_loses_nothing_and_the_next_application_finishes() -> None:
    count, _ = run_undisturbed()
    tally = Tally()
    for index, way in enumerate(WAYS):
        # Another request for each way.
        fail_requests(way, [(1 + 2 * index) * count // (2 * len(WAYS))], tally)
    assert tally.findings == []
    assert tally.outcomes.total() == len(WAYS)
    assert {"finished", "refused", "interrupted", "killed"} <= set(tally.outcomes)
