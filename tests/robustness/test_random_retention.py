"""Retention on a few random trees; `python -m tests.robustness.random_retention` makes more of them."""

from __future__ import annotations

from tests.robustness.random_retention import Tally, run_tree


def test_nothing_is_lost_that_a_snapshot_needs() -> None:
    tally = Tally()
    # On some of these, something is lost where links, pins above a root or jobs beside a root are not looked at.
    for seed in range(27, 47):
        run_tree(seed, tally, actions=3)
    assert tally.findings == []
    assert {"quarantined", "deleted", "restored", "refused root"} <= set(tally.actions)
    assert tally.deleted > 100
