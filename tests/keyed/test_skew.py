"""What is counted per key group, against the entries that `dump` prints."""

from __future__ import annotations

import json
import pickle
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pytest

from state_pipelines.errors import UnsupportedError
from state_pipelines.keyed import stats
from state_pipelines.keyed.hashing.value_hashes import make_key_hasher
from state_pipelines.keyed.operator_table import group_files
from state_pipelines.keyed.stats import (
    KeyGroupMeasurement,
    KeyGroupSizes,
    Move,
    measure_key_groups,
    merge_sizes,
)
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.operations.dump import dump
from tests.snapshot.savepoints import orders, types
from tests.snapshots import OWN, Case, select

if TYPE_CHECKING:
    from state_pipelines.snapshot import Operator

CASES = [each for each in OWN if each.version.startswith("2.2") and not each.drained]


def measure(operator: Operator, *, top: int = 10, move: Move | None = None) -> KeyGroupSizes:
    everything = KeyGroupRange(0, operator.max_parallelism)
    pieces = [
        KeyGroupMeasurement(operator.label, files, everything, top, move)
        for files in group_files(operator.keyed_files).values()
    ]
    return merge_sizes([piece.run() for piece in pieces], everything, top)


def by_key_group(numbers: np.ndarray) -> dict[int, int]:
    return {int(group): int(numbers[group]) for group in np.flatnonzero(numbers)}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_records_and_keys_are_those_that_dump_prints(case: Case) -> None:
    snapshot = case.open_told()
    compared = 0
    for operator in snapshot.operators:
        if not operator.keyed_files:
            continue
        records: Counter[tuple[str, int]] = Counter()
        keys: dict[int, set[str]] = defaultdict(set)
        for line in dump(snapshot, operator=operator.id):
            if line["kind"] in ("keyed", "timer"):
                name = line.get("state") or f"_timer_state/{line['domain']}_{line['service']}"
                group = line["kg"]
                assert isinstance(group, int)
                records[str(name), group] += 1
                keys[group].add(json.dumps(line["key"], sort_keys=True))
        sizes = measure(operator)
        found = {
            (name, group): number
            for state, name in enumerate(sizes.states)
            for group, number in by_key_group(sizes.records[state]).items()
        }
        assert found == records
        assert by_key_group(sizes.all_keys) == {group: len(each) for group, each in keys.items()}
        compared += 1
    assert compared


def test_bytes_are_those_that_the_states_count() -> None:
    for operator in types().open().operators:
        sizes = measure(operator) if operator.keyed_files else None
        for state in operator.keyed_states:
            assert sizes is not None
            assert sizes.bytes[sizes.states.index(state.name)].sum() == state.count().bytes


def test_the_hottest_key_is_the_one_with_the_most_entries() -> None:
    snapshot = orders().open()
    operator = snapshot.operator("orders")
    entries: Counter[str] = Counter()
    for line in dump(snapshot, operator=operator.id):
        if line["kind"] in ("keyed", "timer"):
            entries[str(line["key"])] += 1
    busiest = measure(operator, top=3).most_records
    assert [each.records for each in busiest] == [number for _, number in entries.most_common(3)]
    assert busiest[0].bytes >= busiest[1].bytes


@pytest.mark.slow
def test_the_hottest_of_parts_are_the_hottest_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = orders().open().operator("orders")
    whole = measure(operator, top=5)
    monkeypatch.setattr(stats, "SPLIT_SIZE", 1)
    parts = measure(operator, top=5)
    for found, expected in ((parts.most_bytes, whole.most_bytes), (parts.most_records, whole.most_records)):
        assert [(each.bytes, each.records) for each in found] == [(each.bytes, each.records) for each in expected]
    assert parts.all_keys.tolist() == whole.all_keys.tolist()


def test_only_the_wanted_key_groups_are_counted() -> None:
    operator = orders().open().operator("orders")
    whole, wanted = measure(operator), KeyGroupRange(40, 10)
    (files,) = [files for files in group_files(operator.keyed_files).values() if 40 in files[0].key_groups]
    part = measure_key_groups(files, wanted)
    assert part.all_keys.tolist() == whole.all_keys[40:50].tolist()
    assert part.bytes.sum(0).tolist() == whole.bytes.sum(0)[40:50].tolist()


def test_work_and_its_result_travel_to_other_processes() -> None:
    operator = orders().open().operator("orders")
    everything = KeyGroupRange(0, 128)
    (piece, *_) = [
        KeyGroupMeasurement("orders", files, everything) for files in group_files(operator.keyed_files).values()
    ]
    here = piece.run()
    there = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(piece)).run()))
    assert there.records.tolist() == here.records.tolist()
    assert there.most_bytes == here.most_bytes


def test_keys_move_where_their_hash_says() -> None:
    operator = orders().open().operator("orders")
    serializer = operator.keyed_files[0][1].header.key_serializer
    hasher = make_key_hasher(serializer, operator.record_context.layouts)
    sizes = measure(operator, move=Move(32, hasher))
    assert sizes.moved is not None
    assert sizes.moved.misfiled == 0
    # 32 divides 128, so that key groups fold.
    assert sizes.moved.keys.tolist() == sizes.all_keys.reshape(-1, 32).sum(0).tolist()
    assert sizes.moved.bytes.tolist() == sizes.bytes.sum(0).reshape(-1, 32).sum(0).tolist()


@pytest.mark.parametrize("variant", ["heap", "heap-snappy", "rocksdb", "rocksdb-snappy"])
def test_sections_of_a_savepoint_add_up_to_its_file(variant: str) -> None:
    for operator in types("2.2", variant).open().operators:
        for _, file in operator.keyed_files:
            everything = KeyGroupRange(0, operator.max_parallelism)
            stored, estimated = file.measure_stored_bytes(everything)
            sections = file.sections  # type: ignore[attr-defined]
            size = file.stream.size  # type: ignore[attr-defined]
            assert not estimated
            assert stored.sum() == (size - min(section.start for section in sections) if sections else 0)


def test_the_bytes_of_a_database_are_estimated() -> None:
    (case,) = [each for each in select("2.2.1", "rocksdb-incremental") if "types" in each.name]
    for operator in case.open().operators:
        for _, file in operator.keyed_files:
            everything = KeyGroupRange(0, operator.max_parallelism)
            stored, estimated = file.measure_stored_bytes(everything)
            assert estimated
            tables = sum(table.size for each in file.column_families for table in each.files)  # type: ignore[attr-defined]
            assert abs(int(stored.sum()) - tables) < len(everything)


def test_changelog_does_not_say_where_its_bytes_belong() -> None:
    (case,) = [each for each in select("2.2.1", "changelog-heap-materialized") if "types" in each.name]
    operator = next(each for each in case.open_told().operators if each.keyed_files)
    with pytest.raises(UnsupportedError, match="does not say which key groups"):
        operator.keyed_files[0][1].measure_stored_bytes(KeyGroupRange(0, 128))
