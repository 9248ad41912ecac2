"""Real Flink restores snapshots of every format after their conversion, entry by entry."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines import erase
from state_pipelines.metadata.handles import IncrementalRemoteKeyedStateHandle
from state_pipelines.metadata.streams import read_whole_stream
from state_pipelines.operations.convert import convert
from state_pipelines.snapshot import open_snapshot
from state_pipelines.snapshot.keyed_state import KeyedState
from tests.flink import harness
from tests.flink.make_data import FLINK_2, JOBS, job_of_case
from tests.snapshots import Case, select

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.snapshot import Operator, Snapshot

pytestmark = pytest.mark.flink

IN_FLIGHT_FORMATS = ("canonical", "heap")
ROCKSDB_HEAP_TIMERS = {"state.backend.rocksdb.timer-service.factory": "HEAP"}


@dataclass(frozen=True)
class Conversion:
    """A snapshot in another format, and how Flink restores it.

    Attributes:
        case: name of the snapshot (see `tests.snapshots`).
        format: of the conversion.
        backend: of the restored job.
        parallelism: of the restored job; the snapshots have 2.
        compress: see `convert`.
        line: release line of the snapshot, where it is not the one of the Flink that restores it.
    """

    case: str
    format: str
    backend: str
    parallelism: int = 2
    compress: bool | None = None
    line: str | None = None

    def __str__(self) -> str:
        compressed = {True: "-snappy", False: "-plain", None: ""}[self.compress]
        other = f"-of-{self.line}" if self.line else ""
        return f"{self.case}-as-{self.format}{compressed}-on-{self.backend}-{self.parallelism}{other}"


# The canonical savepoints hold null SQL timestamps, which Flink writes into heap files and cannot read again: none of
# them becomes one.
CONVERSIONS = (
    Conversion("heap", "rocksdb", "rocksdb"),
    Conversion("heap-snappy", "canonical", "rocksdb", 3, compress=False),
    Conversion("heap-native", "canonical", "hashmap", 3),
    Conversion("heap-native", "heap", "hashmap", compress=True),
    Conversion("heap-native-snappy", "rocksdb", "rocksdb", 3),
    Conversion("heap-checkpoint", "rocksdb", "rocksdb", 3),
    Conversion("rocksdb", "canonical", "hashmap", compress=True),
    Conversion("rocksdb-incremental", "canonical", "hashmap", 3),
    Conversion("rocksdb-incremental", "canonical", "rocksdb"),
    Conversion("rocksdb-incremental", "heap", "hashmap", 3),
    Conversion("rocksdb-native", "heap", "hashmap", compress=True),
    Conversion("rocksdb-full", "rocksdb", "rocksdb", 3),
    Conversion("rocksdb-heap-timers", "canonical", "rocksdb", 3),
    Conversion("rocksdb-heap-timers", "rocksdb", "rocksdb"),
    Conversion("rocksdb-file-merging", "heap", "hashmap"),
    Conversion("changelog-heap-files", "canonical", "hashmap", 3),
    Conversion("changelog-rocksdb-materialized", "rocksdb", "rocksdb"),
    Conversion("changelog-rocksdb-memory", "heap", "hashmap", 3),
)
ACROSS = (
    Conversion("changelog-rocksdb-files", "canonical", "rocksdb", 3, line="1.20"),
    Conversion("rocksdb-file-merging", "canonical", "hashmap", line="1.20"),
)
ONLY_FLINK_2 = (Conversion("forst", "rocksdb", "rocksdb", 3),)
ONLY_FLINK_2_3 = (
    Conversion("forst-async", "rocksdb", "rocksdb", 3),
    Conversion("forst-async", "canonical", "hashmap"),
)
ALL = [
    *((version, each) for version in harness.VERSIONS for each in CONVERSIONS),
    *((version, each) for version in FLINK_2 for each in (*ACROSS, *ONLY_FLINK_2)),
    *(("2.3.0", each) for each in ONLY_FLINK_2_3),
]
"""The Flink that restores, and the conversion."""


def find_case(line: str, name: str) -> Case:
    """The snapshot of a release line; for Flink 2.3 that of 2.2 where this tree has none of 2.3."""
    for each in (line, "2.2") if line == "2.3" else (line,):
        found = [case for case in select(each, name) if case.name.startswith("types-")]
        if found:
            return found[0]
    raise LookupError(f"no snapshot {name} of Flink {line}")


def line_of(version: str) -> str:
    return version.rpartition(".")[0]


@pytest.mark.parametrize("name", ["rocksdb-incremental", "rocksdb-file-merging", "changelog-rocksdb-materialized"])
def test_flink_restores_a_copy_whose_original_is_gone(version: str, name: str, tmp_path: Path) -> None:
    case = find_case(line_of(version), name)
    old, target = tmp_path / "old", tmp_path / "copied"
    shutil.copytree(case.folder, old)
    there = replace(case, folder=old, path=old / case.path.relative_to(case.folder))
    convert(there.open_told(), str(target), "keep")
    shutil.rmtree(old)
    result = harness.restore(
        version, target, JOBS[case.job](case.max_parallelism), backend="rocksdb", parallelism=case.parallelism
    )
    assert result.ok, result.error
    assert not (difference := harness.diff_entries(case.entries(), result.entries)), str(difference)


@pytest.mark.parametrize("version", FLINK_2)
def test_forst_restores_a_copy(version: str, tmp_path: Path) -> None:
    case = find_case(line_of(version), "forst")
    convert(case.open_told(), str(tmp_path / "copied"), "keep")
    result = harness.restore(
        version, tmp_path / "copied", job_of_case(case), backend="forst", parallelism=case.parallelism
    )
    assert result.ok, result.error
    assert not (difference := harness.diff_entries(case.entries(), result.entries)), str(difference)


@pytest.mark.parametrize("name", ["rocksdb-incremental", "rocksdb-heap-timers"])
def test_flink_restores_what_erasing_a_key_leaves(version: str, name: str, tmp_path: Path) -> None:
    """Operators without the key stay RocksDB databases, the others become canonical."""
    case = find_case(line_of(version), name)
    key = next(entry["key"] for entry in case.entries() if entry["kind"] == "keyed")
    assert erase(case.open_told(), [key], str(tmp_path / "erased")) is not None
    result = harness.restore(
        version,
        tmp_path / "erased",
        JOBS[case.job](case.max_parallelism),
        backend="rocksdb",
        parallelism=case.parallelism,
    )
    assert result.ok, result.error
    rest = [entry for entry in case.entries() if entry.get("key") != key]
    assert not (difference := harness.diff_entries(rest, result.entries)), str(difference)


@pytest.mark.parametrize(("version", "conversion"), ALL, ids=str)
def test_flink_restores_every_entry(version: str, conversion: Conversion, tmp_path: Path) -> None:
    case = find_case(conversion.line or line_of(version), conversion.case)
    target = tmp_path / "converted"
    convert(case.open_told(), str(target), conversion.format, compress=conversion.compress)
    result = harness.restore(
        version,
        target,
        # Without the options of the job that wrote it: the format is another one now.
        JOBS[case.job](case.max_parallelism),
        backend=conversion.backend,
        parallelism=conversion.parallelism,
    )

    assert result.ok, result.error
    difference = harness.diff_entries(case.entries(), result.entries)
    assert not difference, str(difference)


@pytest.mark.slow
def test_flink_restores_what_went_through_every_format(version: str, tmp_path: Path) -> None:
    case = find_case(line_of(version), "rocksdb-incremental")
    snapshot = case.open_told()
    for number, format in enumerate(("canonical", "heap", "rocksdb", "heap", "canonical")):
        convert(snapshot, str(tmp_path / str(number)), format, compress=True if format == "heap" else None)
        snapshot = open_snapshot(str(tmp_path / str(number)), uids=case.uids)
    result = harness.restore(version, tmp_path / "4", JOBS[case.job](case.max_parallelism), parallelism=3)

    assert result.ok, result.error
    difference = harness.diff_entries(case.entries(), result.entries)
    assert not difference, str(difference)


@pytest.mark.slow
def test_timers_on_the_heap_are_restored_from_a_canonical_savepoint(version: str, tmp_path: Path) -> None:
    case = find_case(line_of(version), "rocksdb-heap-timers")
    assert ROCKSDB_HEAP_TIMERS.items() <= case.settings.items()
    convert(case.open_told(), str(tmp_path / "converted"))
    result = harness.restore(version, tmp_path / "converted", job_of_case(case), backend="rocksdb")

    assert result.ok, result.error
    difference = harness.diff_entries(case.entries(), result.entries)
    assert not difference, str(difference)


@pytest.mark.parametrize("format", IN_FLIGHT_FORMATS)
def test_records_in_flight_arrive_after_the_restore(version: str, format: str, tmp_path: Path) -> None:
    case = find_case(line_of(version), "unaligned")
    convert(case.open_told(), str(tmp_path / "converted"), format, in_flight="keep")
    result = harness.restore(version, tmp_path / "converted", job_of_case(case), backend=case.backend)

    assert result.ok, result.error
    difference = harness.diff_entries(case.entries(), result.entries)
    assert not difference, str(difference)


def stage_databases(snapshot: Snapshot, operator: Operator, target: Path) -> list[Path]:
    """The RocksDB directory of each subtask, put together from its state handle."""
    directories = []
    for subtask in operator.metadata.subtasks:
        handle = subtask.managed_keyed_state
        if handle is None:
            continue
        assert isinstance(handle, IncrementalRemoteKeyedStateHandle)
        directory = target / operator.id / str(subtask.index)
        directory.mkdir(parents=True)
        for file in (*handle.shared_state, *handle.private_state):
            stream = snapshot.handles.open_stream(file.handle)
            (directory / file.local_path).write_bytes(read_whole_stream(stream))
        directories.append(directory)
    return directories


def list_records(operator: Operator) -> dict[str, list[tuple[bytes, bytes]]]:
    """Keys, with the key group in front, and values of every keyed state of the operator."""
    prefix = 1 if operator.max_parallelism <= 128 else 2
    found: dict[str, list[tuple[bytes, bytes]]] = {}
    for state in operator.states:
        if not isinstance(state, KeyedState):
            continue
        pairs = found.setdefault(state.name, [])
        for subtask_state in state.subtask_states:
            for records in subtask_state.records():
                data = records.data.tobytes()
                spans = zip(
                    records.key_groups.tolist(),
                    *(each.tolist() for each in (records.key_starts, records.key_ends)),
                    *(each.tolist() for each in (records.value_starts, records.value_ends)),
                    strict=True,
                )
                pairs += [(group.to_bytes(prefix, "big") + data[a:b], data[c:d]) for group, a, b, c, d in spans]
    return found


@pytest.mark.parametrize(("version", "name", "uid"), [("2.2.1", "rocksdb-incremental", "state-kinds")])
def test_flinks_own_rocksdb_reads_the_records(version: str, name: str, uid: str, tmp_path: Path) -> None:
    case = find_case(line_of(version), name)
    convert(case.open_told(), str(tmp_path / "converted"), "rocksdb")
    snapshot = open_snapshot(str(tmp_path / "converted"), uids=case.uids)
    families: dict[str, list[tuple[bytes, bytes]]] = {}
    for directory in stage_databases(snapshot, snapshot.operator(uid), tmp_path / "databases"):
        for family, pairs in harness.dump_rocksdb(version, directory).items():
            families.setdefault(family, []).extend(pairs)

    assert not families.pop("default")
    expected = list_records(case.open_told().operator(uid))
    assert {family: sorted(pairs) for family, pairs in families.items()} == {
        family: sorted(pairs) for family, pairs in expected.items()
    }
