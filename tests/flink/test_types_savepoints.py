from __future__ import annotations

import pytest

from tests.flink import harness
from tests.flink.make_data import VARIANTS, Variant, folder_of, job_of

pytestmark = pytest.mark.flink


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_types_savepoint_restores_entry_by_entry(version: str, variant: Variant) -> None:
    folder = folder_of(version, variant)
    (snapshot,) = folder.glob("savepoint-*")

    result = harness.restore(version, snapshot, job_of(variant), backend=variant.backend, parallelism=3)

    assert result.ok, result.error
    assert not harness.diff_entries(harness.read_entries(folder / "expected.jsonl.gz"), result.entries)
