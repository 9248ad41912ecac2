"""Real Flink restores the snapshots of this tree, of every format."""

from __future__ import annotations

import pytest

from tests.flink import harness
from tests.flink.make_data import job_of_case
from tests.snapshots import OWN, Case

# What Flink wrote says nothing about us; it shows that the expected entries of the snapshots are right.
pytestmark = [pytest.mark.flink, pytest.mark.slow]


# The state API of the tests does not reach asynchronous state in ForSt; its conversions are restored by RocksDB.
@pytest.mark.parametrize("case", [case for case in OWN if case.case != "forst-async"], ids=str)
def test_snapshot_restores_entry_by_entry(case: Case, parallelism: int) -> None:
    result = harness.restore(
        case.version,
        case.path,
        job_of_case(case),
        backend=case.backend,
        parallelism=parallelism,
        mapping={case.written: case.folder},
    )

    assert result.ok, result.error
    difference = harness.diff_entries(case.entries(), result.entries)
    assert not difference, str(difference)
