from __future__ import annotations

import json
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from state_pipelines.codecs.kryo import FieldLists
from state_pipelines.codecs.kryo.values import ClassTable
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.metadata.checkpoint import SubtaskState
from state_pipelines.metadata.handles import ByteStreamStateHandle, KeyGroupRange, KeyGroupsSavepointStateHandle
from state_pipelines.operations.profiling import Profile, StateProfile, profile_snapshot
from state_pipelines.serializers import build
from state_pipelines.serializers.java_types import KryoConfig
from state_pipelines.serializers.state_meta_info import priority_queue
from state_pipelines.snapshot import open_snapshot
from tests.keyed.canonical_files import make_file
from tests.snapshot import built
from tests.snapshots import OWN, UNKNOWN, Case, select

if TYPE_CHECKING:
    from pathlib import Path

CASES = [
    case
    for case in OWN
    if case.version.startswith("2.2")
    and case.case in ("heap-native-snappy", "rocksdb", "rocksdb-incremental", "changelog-heap-memory")
]


def states(profile: Profile) -> dict[tuple[str, str], StateProfile]:
    return {(operator.label, state.name): state for operator in profile.operators for state in operator.states}


@pytest.fixture(scope="module")
def profile() -> Profile:
    (case,) = (each for each in OWN if each.version.startswith("2.2") and each.case == "heap")
    return profile_snapshot(case.open_told(), ttl={"": timedelta(days=7)})


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_entries_are_those_of_flink(case: Case) -> None:
    found = profile_snapshot(case.open_told())
    counted: Counter[tuple[object, object]] = Counter()
    for entry in case.entries():
        if entry["kind"] == "keyed":
            # A list has a row for each element.
            rows = len(entry["value"]) if entry["type"] == "LIST" else 1
            counted[entry["op"], entry["state"]] += rows
    assert counted
    assert found.errors == []
    entries = {name: state.entries for name, state in states(found).items()}
    assert {name: entries[name] for name in counted} == counted  # type: ignore[index]


def test_bytes_and_keys_are_those_of_the_balance(profile: Profile) -> None:
    for operator in profile.operators:
        if operator.balance is None:
            continue
        sizes = {each.name: (each.bytes, each.keys) for each in operator.balance.states}
        assert {each.name: (each.bytes, each.keys) for each in operator.states if each.name in sizes} == sizes


def test_columns_are_those_of_the_table(profile: Profile) -> None:
    (case,) = (each for each in OWN if each.version.startswith("2.2") and each.case == "heap")
    table = case.open_told().operator("ttl-states").state("sum").to_arrow()
    columns = {each.column: each for each in states(profile)["ttl-states", "sum"].columns}
    values = table["value"].to_pylist()
    assert (columns["value"].rows, columns["value"].maximum) == (len(values), max(values))
    assert columns["value"].defaults == values.count(0)


def test_serializers_are_named(profile: Profile) -> None:
    state = states(profile)["ttl-states", "sum"]
    assert (state.kind, state.namespace) == ("REDUCING", "VoidNamespace")
    assert state.key
    assert "Ttl" in state.value


def test_entries_with_ttl_have_an_outlook() -> None:
    (case,) = (each for each in OWN if each.version.startswith("2.2") and each.case == "heap")
    snapshot = case.open_told()
    times = snapshot.operator("ttl-states").state("value").to_arrow()["ttl_last_access"].to_pylist()
    now = max(times) + timedelta(hours=1)
    found = profile_snapshot(snapshot, operators=["ttl-states"], ttl={"value": timedelta(minutes=30)}, now=now)
    outlook = states(found)["ttl-states", "value"].ttl
    assert outlook is not None
    assert (outlook.entries, outlook.expired) == (len(times), len(times))
    other = states(found)["ttl-states", "map"].ttl
    assert other is not None
    assert other.expired is None
    assert found.expired == len(times)


@pytest.mark.slow
def test_a_ttl_that_no_state_has_is_unused() -> None:
    (case,) = (each for each in OWN if each.version.startswith("2.2") and each.case == "heap")
    lives = dict.fromkeys(("absent", "ttl-states/sum", "average", "numbers/sum", ""), timedelta(days=1))
    assert profile_snapshot(case.open_told(), ttl=lives).unused_ttl == ["absent", "numbers/sum"]


def test_the_ttl_of_an_operator_comes_first() -> None:
    (case,) = (each for each in OWN if each.version.startswith("2.2") and each.case == "heap")
    lives = {"ttl-states/sum": timedelta(days=1), "sum": timedelta(days=2), "": timedelta(days=3)}
    found = states(profile_snapshot(case.open_told(), operators=["ttl-states"], ttl=lives))
    days = {name: each.ttl.ttl / 86400 for (_, name), each in found.items() if each.ttl and each.ttl.ttl}
    assert (days["sum"], days["average"]) == (1, 3)


def test_only_some_operators() -> None:
    (case,) = (each for each in OWN if each.version.startswith("2.2") and each.case == "heap")
    found = profile_snapshot(case.open_told(), operators=["ttl-states"])
    assert [each.label for each in found.operators] == ["ttl-states"]
    assert [each.label for each in found.balance.operators] == ["ttl-states"]


def test_the_report_is_json(profile: Profile) -> None:
    report = json.loads(json.dumps(profile.to_json()))
    (column,) = (
        column
        for operator in report["operators"]
        for state in operator["states"]
        if (operator["uid"], state["name"]) == ("ttl-states", "sum")
        for column in state["columns"]
        if column["column"] == "value"
    )
    assert column["null_ratio"] == 0
    assert report["entries"] == profile.entries > 0


@pytest.mark.parametrize("case", UNKNOWN, ids=str)
def test_an_unknown_serializer_does_not_hide_the_others(case: Case) -> None:
    found = states(profile_snapshot(case.open()))
    purses = {state.name for (label, _), state in found.items() if label == "purses"}
    assert purses
    readable = [state for (label, _), state in found.items() if label != "purses"]
    assert all(not state.error and not state.undecoded for state in readable)
    assert sum(state.entries or 0 for state in readable) > 0


@pytest.mark.slow
def test_entries_that_cannot_be_decoded_are_counted() -> None:
    (case,) = (each for each in OWN if each.version.startswith("2.2") and each.case == "heap")
    # Without the class, half of the values of the state cannot be decoded.
    found = states(profile_snapshot(case.open()))["composite-types", "person-or-guest"]
    assert found.entries == 12
    assert 0 < found.failed < 12
    assert "class" in found.failure
    assert {each.rows for each in found.columns if each.column.startswith("state_key")} == {12}
    assert sum(each.column.startswith("value") for each in found.columns) > 1
    assert not found.error


@pytest.mark.slow
def test_a_damaged_file_does_not_hide_the_other_operators(tmp_path: Path) -> None:
    (case,) = select("2.2", "heap", "canonical")[:1]
    path = tmp_path / case.path.name
    shutil.copytree(case.path, path)
    whole = profile_snapshot(open_snapshot(str(path), uids=case.uids))
    largest = max((each for each in path.iterdir() if each.name != "_metadata"), key=lambda each: each.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    found = profile_snapshot(open_snapshot(str(path), uids=case.uids))
    damaged = {error.partition(":")[0] for error in found.errors}
    assert len(damaged) == 1
    readable = [each for each in found.operators if f"operator {each.label}" not in damaged]
    expected = {each.label: each.states for each in whole.operators}
    assert {each.label: [state.entries for state in each.states] for each in readable} == {
        each.label: [state.entries for state in expected[each.label]] for each in readable
    }


@pytest.mark.slow
def test_ages_are_told_at_the_given_time() -> None:
    (case,) = select("2.2", "heap", "canonical")[:1]
    found = profile_snapshot(case.open_told(), now=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert found.at == "2026-01-02T03:04:05+00:00"


def test_timers_of_keys_that_are_not_decoded_are_profiled_by_their_bytes(tmp_path: Path) -> None:
    """Two timers of a class with a Kryo serializer of its own, which nothing reads."""
    own = KryoConfig(serializers=(("com.acme.Id", "com.acme.IdSerializer"),)).configure("com.acme.Id")
    timers = priority_queue("_timer_state/event_user-timers", build.timer(own, build.VOID_NAMESPACE))
    groups = KeyGroupRange(0, 128)
    # Timestamp with its sign bit flipped, class id of Kryo 2, a new object, bytes of the key, void namespace.
    id_of_key = ClassTable(own, 2, FieldLists()).ids["com.acme.Id"] + 2
    elements = [bytes.fromhex(f"800000000000000{number} {id_of_key:02x} 01 cafe0{number} 00") for number in (1, 2)]
    header = KeyedHeader(key_serializer=own, states=(timers,))
    data, offsets = make_file(header, groups, 1, [(7, 0, [(each, b"") for each in elements])])
    handle = KeyGroupsSavepointStateHandle(groups, offsets, ByteStreamStateHandle("timers", data))
    snapshot = built.build_snapshot(
        tmp_path / "made", built.operator("ids", SubtaskState(0, managed_keyed_state=handle))
    )
    ((found,),) = (each.states for each in profile_snapshot(snapshot).operators)
    assert (found.entries, found.error, found.damaged) == (2, "", False)
    assert found.failed == 2
    assert "com.acme.IdSerializer" in found.failure
    assert {each.column: each.nulls for each in found.columns} == {"timestamp": 2, "state_key": 2}
