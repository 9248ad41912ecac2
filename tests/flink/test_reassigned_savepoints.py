"""Real Flink restores snapshots whose parallelism was changed, entry by entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.flink import harness
from tests.flink.make_data import JOBS, job_of_case
from tests.flink.test_converted_savepoints import find_case, line_of
from tests.operations.rescaling.reassigning import reassign

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.flink


@dataclass(frozen=True)
class Chain:
    """A snapshot, the parallelisms that it takes on one after the other, and how Flink restores it.

    Attributes:
        case: name of the snapshot (see `tests.snapshots`), of parallelism 2.
        parallelisms: one after the other; Flink restores with the last one.
        backend: of the restored job.
        restored_at: in the end Flink restores with this parallelism, and redistributes the state.
        narrow: see `plan_parallelism`.
    """

    case: str
    parallelisms: tuple[int, ...]
    backend: str
    restored_at: int
    narrow: bool = True

    def __str__(self) -> str:
        return "-".join((self.case, *map(str, self.parallelisms), "narrowed" if self.narrow else "cut"))


CHAINS = (
    Chain("heap", (3, 1, 7), "rocksdb", 2),
    Chain("heap-snappy", (3, 1, 7), "hashmap", 5, narrow=False),
    Chain("heap-native", (3, 1, 7), "hashmap", 2),
    Chain("heap-native-snappy", (1, 7), "hashmap", 3, narrow=False),
    Chain("rocksdb-native", (4, 8), "rocksdb", 3),
    Chain("rocksdb-heap-timers", (4,), "rocksdb", 4),
)


@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_flink_restores_every_entry(version: str, chain: Chain, tmp_path: Path) -> None:
    case = find_case(line_of(version), chain.case)
    snapshot = case.open_told()
    scaled = {operator.id for operator in snapshot.operators if operator.parallelism == case.parallelism}
    for parallelism in chain.parallelisms:
        snapshot = reassign(snapshot, parallelism, tmp_path / str(parallelism), operators=scaled, narrow=chain.narrow)
    # Timers on the heap are found there only.
    job = job_of_case(case) if "heap-timers" in chain.case else JOBS[case.job](case.max_parallelism)
    last = chain.parallelisms[-1]
    for restored in dict.fromkeys((last, chain.restored_at)):
        result = harness.restore(version, tmp_path / str(last), job, backend=chain.backend, parallelism=restored)

        assert result.ok, result.error
        difference = harness.diff_entries(case.entries(), result.entries)
        assert not difference, f"restored at {restored}: {difference}"
