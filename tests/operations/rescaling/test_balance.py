from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.errors import NotFoundError, UsageError
from state_pipelines.keyed.hashing import hash_codes
from state_pipelines.keyed.hashing.value_hashes import KeyHasher
from state_pipelines.keyed.key_groups import assign_key_groups, compute_operator_index
from state_pipelines.metadata.checkpoint import SubtaskState
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.operations.balance import (
    HotKeyLoad,
    KeyGroupLoads,
    advise,
    distribute,
    find_max_parallelism_conflicts,
    measure_balance,
)
from state_pipelines.operations.dump import dump
from state_pipelines.snapshot.keyed_state import KeyedState
from tests.operations.rescaling.keyed_files import STRING
from tests.snapshot.built import build_snapshot, operator, write_raw_keyed
from tests.snapshot.savepoints import orders, types
from tests.snapshots import select

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from state_pipelines.keyed.record_layout import KeyedRecords


def count_by_subtask(name: str, parallelism: int) -> dict[int, int]:
    """Records per subtask, one entry of `dump` at a time."""
    found: Counter[int] = Counter()
    for line in dump(orders().open(), operator=name):
        if line["kind"] in ("keyed", "timer"):
            group = line["kg"]
            assert isinstance(group, int)
            found[compute_operator_index(group, parallelism, 128)] += 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2, 3, 7, 96, 128])
def test_records_per_subtask_are_those_that_dump_prints(parallelism: int) -> None:
    (balance,) = measure_balance(orders().open(), operators=["orders"], parallelism=parallelism).operators
    assert balance.now is not None
    assert balance.predicted is not None
    assert {each.subtask: each.records for each in balance.now.subtasks} == count_by_subtask("orders", 2)
    expected = count_by_subtask("orders", parallelism)
    assert [each.records for each in balance.predicted.subtasks] == [expected[each] for each in range(parallelism)]
    assert balance.predicted.bytes == balance.now.bytes


@pytest.mark.parametrize("max_parallelism", [16, 96, 1024, 32768])
def test_keys_per_key_group_are_those_of_their_hash(max_parallelism: int) -> None:
    (balance,) = measure_balance(orders().open(), operators=["orders"], max_parallelism=max_parallelism).operators
    state = orders().open().operator("orders").state("order")
    assert isinstance(state, KeyedState)
    keys = state.to_arrow()["state_key"].combine_chunks()
    codes = hash_codes(state.key_serializer, keys)
    expected = np.bincount(assign_key_groups(codes, max_parallelism), minlength=max_parallelism)
    assert balance.unpredicted == ""
    assert balance.predicted is not None
    # Every key of the operator has an order.
    assert balance.predicted.loads.keys == expected.tolist()
    assert balance.now is not None
    assert balance.predicted.bytes == balance.now.bytes


def test_a_divisor_needs_no_hash_and_no_reading() -> None:
    (balance,) = measure_balance(orders().open(), operators=["orders"], max_parallelism=32, count=False).operators
    assert balance.now is not None
    assert balance.predicted is not None
    folded = np.array(balance.now.loads.bytes).reshape(4, 32).sum(0)
    assert balance.predicted.loads.bytes == folded.tolist()
    assert (balance.measured, balance.predicted.loads.keys) == ("offsets", None)


def test_a_hash_that_does_not_explain_the_key_groups_predicts_nothing() -> None:
    class Wrong(KeyHasher):
        def hash_keys(self, records: KeyedRecords, *, skip: int = 0) -> npt.NDArray[np.int32]:
            return np.zeros(len(records), np.int32)

    snapshot = orders().open()
    hashers = {snapshot.operator("orders").metadata.operator_id: Wrong(STRING, LayoutContext())}
    (balance,) = measure_balance(snapshot, operators=["orders"], max_parallelism=100, hashers=hashers).operators
    assert balance.predicted is None
    assert "the hash does not give the key groups of" in balance.unpredicted
    assert "of 200 keys" in balance.unpredicted


def test_the_hash_of_a_user_class_is_found() -> None:
    (balance,) = measure_balance(types().open(), operators=["state-kinds"], max_parallelism=100).operators
    assert balance.predicted is not None
    assert balance.predicted.loads.keys is not None
    assert sum(balance.predicted.loads.keys) == 12


def test_a_max_parallelism_below_the_parallelism_is_said() -> None:
    (balance,) = measure_balance(orders().open(), operators=["orders"], parallelism=500).operators
    assert balance.predicted is None
    assert balance.unpredicted.startswith("parallelism 500 exceeds max parallelism 128")


def test_a_number_that_flink_does_not_allow_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="32769 is not between 1 and 32768"):
        measure_balance(orders().open(), max_parallelism=32769)


def test_an_unknown_operator_is_an_error() -> None:
    with pytest.raises(NotFoundError, match="no operator nobody"):
        measure_balance(orders().open(), operators=["nobody"])


def test_hot_keys_come_as_text_with_their_share() -> None:
    (balance,) = measure_balance(orders().open(), operators=["revenue-per-minute"]).operators
    assert balance.now is not None
    hottest = balance.most_bytes[0]
    assert (hottest.key, hottest.key_group, hottest.records) == ("smile \N{GRINNING FACE}", 76, 14)
    assert hottest.share == hottest.bytes / balance.now.subtasks[1].bytes
    assert '""' in [each.key for each in balance.most_bytes]
    group = balance.hottest_key_groups[0]
    assert (group.key_group, group.subtask, group.keys, group.bytes) == (76, 1, 1, hottest.bytes)


def test_what_cannot_be_counted_quickly_is_said() -> None:
    (case,) = [each for each in select("2.2.1", "changelog-heap-materialized") if "types" in each.name]
    balance = measure_balance(case.open_told(), count=False)
    assert {each.now for each in balance.operators} == {None}
    assert "does not say which key groups" in balance.operators[0].error


def test_the_timers_in_raw_keyed_state_count_with_their_keys() -> None:
    case = next(each for each in select("2.2.1") if each.format == "incremental checkpoint, timers on the heap")
    found = [each for each in measure_balance(case.open_told()).operators if each.states]
    timers = [state for each in found for state in each.states if state.name.startswith("_timer_state/")]
    assert sum(state.records or 0 for state in timers)


def test_raw_keyed_state_counts_with_its_bytes(tmp_path: Path) -> None:
    raw = write_raw_keyed({3: b"only the operator knows", 9: b"!"}, KeyGroupRange(0, 128))
    snapshot = build_snapshot(tmp_path, operator("raw", SubtaskState(0, raw_keyed_state=raw)))
    (balance,) = measure_balance(snapshot, parallelism=64).operators
    assert balance.predicted is not None
    assert [(each.subtask, each.bytes) for each in balance.predicted.subtasks if each.bytes] == [(1, 23), (4, 1)]
    assert any("raw keyed state" in note for note in balance.notes)
    (moved,) = measure_balance(snapshot, max_parallelism=100).operators
    assert "raw keyed state does not say what its keys are" in moved.unpredicted


def test_operators_of_different_max_parallelism_conflict(tmp_path: Path) -> None:
    raw = SubtaskState(0, raw_keyed_state=write_raw_keyed({0: b"a"}, KeyGroupRange(0, 128)))
    other = replace(operator("b", raw), max_parallelism=256)
    stateless = replace(operator("c", SubtaskState(0)), max_parallelism=64)
    snapshot = build_snapshot(tmp_path, operator("a", raw), other, stateless, uids=["a", "b", "c"])
    (conflict,) = find_max_parallelism_conflicts(snapshot)
    assert (conflict.parallelism, conflict.max_parallelisms) == (1, {"a": 128, "b": 256})
    assert "loses the state" in str(conflict)
    assert measure_balance(snapshot).conflicts == [conflict]


def test_operators_that_cannot_be_chained_do_not_conflict(tmp_path: Path) -> None:
    raw = [SubtaskState(each, raw_keyed_state=write_raw_keyed({0: b"a"}, KeyGroupRange(0, 1))) for each in range(2)]
    other = replace(operator("b", *raw), max_parallelism=256)
    assert find_max_parallelism_conflicts(build_snapshot(tmp_path, operator("a", raw[0]), other)) == []


LOADS = KeyGroupLoads([10] * 128, [1] * 128, [1] * 128)


def test_a_parallelism_that_does_not_divide_is_spoken_of() -> None:
    (line,) = advise(distribute(LOADS, 96, 128), [])
    assert line == (
        "parallelism 96 with max parallelism 128 gives subtasks of 1 and 2 key groups: the largest has 1.5 times the "
        "mean; choose a divisor of 128 (64 or 128) or a larger max parallelism"
    )


@pytest.mark.parametrize("parallelism", [1, 2, 7, 64, 128])
def test_even_key_groups_need_no_advice(parallelism: int) -> None:
    assert advise(distribute(LOADS, parallelism, 128), []) == []


def test_a_hot_key_group_and_its_one_key_are_spoken_of() -> None:
    loads = KeyGroupLoads([10, 10, 970, 10], [1, 1, 97, 1], [1, 1, 2, 1])
    distribution = distribute(loads, 4, 4)
    (line,) = advise(distribution, [])
    assert line.startswith("key group 2 alone holds 97% of the bytes, 3.9 times the even share")
    assert line.endswith("a larger max parallelism spreads its keys")
    (line,) = advise(distribution, [HotKeyLoad("the one", 2, 2, 96, 960, 0.99)])
    assert line.endswith("Most of it is the one key the one, and no rescaling splits a key: give it a finer key")


def test_idle_subtasks_are_spoken_of() -> None:
    distribution = distribute(KeyGroupLoads([5, 5, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]), 4, 4)
    assert distribution.idle == [2, 3]
    assert distribution.imbalance == 2
    assert "2 of 4 subtasks have no state" in advise(distribution, [])[0]


def test_the_report_is_json_and_markdown() -> None:
    balance = measure_balance(orders().open(), parallelism=3)
    found = json.loads(json.dumps(balance.to_json()))
    assert [each["uid"] for each in found["operators"]] == ["revenue-per-minute", "orders"]
    assert len(found["operators"][1]["predicted"]["subtasks"]) == 3
    text = balance.to_markdown()
    assert "### orders" in text
    assert "| predicted | 3 | 128 |" in text
