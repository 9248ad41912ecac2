from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import state_pipelines as sp
from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.programs import Encoded
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import FormatError, UnsupportedError, UsageError
from state_pipelines.keyed.canonical import CanonicalFile
from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.metadata import KeyGroupRange, SubtaskState
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    IncrementalRemoteKeyedStateHandle,
    KeyGroupsSavepointStateHandle,
    KeyGroupsStateHandle,
    OperatorStateHandle,
    OperatorStreamStateHandle,
    RelativeFileStateHandle,
)
from state_pipelines.metadata.streams import StateStream, StreamRange, read_whole_stream
from state_pipelines.operations.dump import dump
from state_pipelines.operations.rescale.assembly import Assembler, FileAssembly, NeedsRecords, assemble_operator
from state_pipelines.operatorstate import OperatorHeader, read_operator_file, read_operator_header, write_operator_file
from state_pipelines.serializers.build import basic
from state_pipelines.serializers.state_meta_info import broadcast_state, operator_list
from state_pipelines.snapshot import Operator, handle_readers
from state_pipelines.snapshot.checks import check_elements
from state_pipelines.storage import read_file, resolve
from tests.flink.harness import diff_entries
from tests.operations.rescaling.reassigning import Reassigned, plan_parallelism, reassign
from tests.snapshot.built import (
    build_snapshot,
    list_operator,
    operator,
    write_list_state,
    write_raw_keyed,
    write_raw_operator,
)
from tests.snapshots import OWN, Case

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.metadata import OperatorState
    from state_pipelines.snapshot import Snapshot

TARGET = resolve("memory://target")
SECTIONS = (
    ("heap-snappy", True),
    ("heap-snappy", False),
    ("heap-native-snappy", True),
    ("heap-native-snappy", False),
    ("heap-checkpoint", True),
    ("rocksdb-snappy", False),
)
DATABASES = ("rocksdb-native", "rocksdb-file-merging", "rocksdb-heap-timers")


def find(name: str, line: str = "2.2") -> Case:
    (case,) = (each for each in OWN if each.case == name and each.version.startswith(line))
    return case


def scaled(snapshot: Snapshot) -> set[str]:
    return {each.id for each in snapshot.operators if each.parallelism > 1}


def plan(snapshot: Snapshot, uid: str, parallelism: int, *, narrow: bool = True) -> OperatorState:
    planned = plan_parallelism(snapshot.operator(uid), parallelism, TARGET, narrow=narrow)
    assert isinstance(planned, Reassigned), planned
    for piece in planned.assemblies:
        piece.run()
    return planned.operator


def content(handle: object) -> bytes:
    if isinstance(handle, ByteStreamStateHandle):
        return handle.data
    assert isinstance(handle, RelativeFileStateHandle)
    return read_file(resolve(f"memory://target/{handle.relative_path}"))


def elements(handle: object, state: str) -> list[bytes]:
    """The elements of a list state."""
    assert isinstance(handle, OperatorStreamStateHandle)
    file = read_operator_file(content(handle.delegate), handle, "state")
    data, starts, ends = file.elements(state)
    return [data[start:end].tobytes() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def keyed(state: OperatorState) -> list[KeyGroupsSavepointStateHandle]:
    """The canonical keyed state of each subtask."""
    found = []
    for subtask in state.subtasks:
        assert isinstance(subtask.managed_keyed_state, KeyGroupsSavepointStateHandle)
        found.append(subtask.managed_keyed_state)
    return found


def raw_keyed(state: OperatorState) -> list[KeyGroupsStateHandle]:
    """The raw keyed state of each subtask."""
    found = []
    for subtask in state.subtasks:
        assert isinstance(subtask.raw_keyed_state, KeyGroupsStateHandle)
        found.append(subtask.raw_keyed_state)
    return found


def operator_handles(state: OperatorState) -> list[OperatorStateHandle]:
    """The managed operator state of each subtask."""
    found = [subtask.managed_operator_state for subtask in state.subtasks]
    assert None not in found
    return [each for each in found if each is not None]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "narrow"), SECTIONS)
def test_no_entry_is_lost_or_comes_twice(name: str, narrow: bool, tmp_path: Path) -> None:
    snapshot = find(name).open_told()
    expected = list(dump(snapshot))
    operators = scaled(snapshot)
    for parallelism in (3, 1, 7, 2):
        snapshot = reassign(snapshot, parallelism, tmp_path / str(parallelism), operators=operators, narrow=narrow)
        difference = diff_entries(expected, dump(snapshot))
        assert not difference, f"{parallelism}: {difference}"


@pytest.mark.slow
@pytest.mark.parametrize("name", DATABASES)
def test_a_database_is_handed_on_and_read_once(name: str, tmp_path: Path) -> None:
    old = find(name).open_told()
    new = reassign(old, 8, tmp_path / "8", operators=scaled(old))
    difference = diff_entries(dump(old), dump(new))
    assert not difference, str(difference)


def test_a_part_of_a_database_has_its_handle_and_only_its_own_records() -> None:
    snapshot = find("rocksdb-native").open_told()
    uid = next(each.label for each in snapshot.operators if each.keyed_files)
    old = [each.managed_keyed_state for each in snapshot.operator(uid).metadata.subtasks]
    new = [each.managed_keyed_state for each in plan(snapshot, uid, 4).subtasks]
    assert new == [old[0], old[0], old[1], old[1]]
    assert isinstance(new[1], IncrementalRemoteKeyedStateHandle)
    assert new[1].key_groups == KeyGroupRange(0, 64)


@pytest.mark.slow
def test_files_know_the_key_groups_of_their_subtask_only(tmp_path: Path) -> None:
    old = find("rocksdb-native").open_told()
    new = reassign(old, 8, tmp_path / "8", operators=scaled(old))
    ranges = {
        (index, file.key_groups) for each in new.operators if each.id in scaled(old) for index, file in each.keyed_files
    }
    assert ranges == {(index, compute_key_group_range(index, 8, 128)) for index in range(8)}


@pytest.mark.parametrize(
    ("name", "parallelism", "reason"),
    [
        ("rocksdb-native", 3, "2 RocksDB databases"),
        ("changelog-heap-files", 4, "changelog"),
        ("forst", 4, "ForSt"),
    ],
)
def test_what_cannot_be_handed_on_says_why(name: str, parallelism: int, reason: str) -> None:
    snapshot = find(name).open_told()
    found = [plan_parallelism(each, parallelism, TARGET) for each in snapshot.operators if each.keyed_files]
    assert found
    assert all(isinstance(each, NeedsRecords) and reason in each.reason for each in found)


def test_a_range_inside_one_file_takes_no_data() -> None:
    snapshot = find("heap").open_told()
    found = next(each for each in snapshot.operators if each.keyed_files)
    planned = plan_parallelism(found, 4, TARGET)
    assert isinstance(planned, Reassigned)
    old, new = keyed(found.metadata), keyed(planned.operator)
    paths = [
        [each.delegate.relative_path for each in handles if isinstance(each.delegate, RelativeFileStateHandle)]
        for handles in (old, new)
    ]
    assert paths[1] == [paths[0][0], paths[0][0], paths[0][1], paths[0][1]]
    assert [each.key_groups for each in new] == [compute_key_group_range(index, 4, 128) for index in range(4)]
    assert tuple(offset for each in new for offset in each.offsets) == old[0].offsets + old[1].offsets


def test_what_was_narrowed_becomes_the_old_file_again() -> None:
    snapshot = find("heap").open_told()
    found = next(each for each in snapshot.operators if each.keyed_files)
    again = plan_parallelism(Operator(snapshot, reassigned(found, 4)), 2, TARGET)
    assert isinstance(again, Reassigned)
    assert keyed(again.operator) == keyed(found.metadata)


def test_sections_of_raw_keyed_state_follow_their_key_groups(tmp_path: Path) -> None:
    halves = (KeyGroupRange(0, 64), KeyGroupRange(64, 64))
    sections = ({5: b"five", 40: b"forty"}, {64: b"sixty-four", 127: b""})
    subtasks = (
        SubtaskState(index, raw_keyed_state=write_raw_keyed(each, groups))
        for index, (each, groups) in enumerate(zip(sections, halves, strict=True))
    )
    snapshot = build_snapshot(tmp_path, operator("raw", *subtasks), uids=["raw"])
    (whole,) = raw_keyed(plan(snapshot, "raw", 1))
    data = content(whole.delegate)
    offsets = dict(zip(whole.key_groups, whole.offsets, strict=True))
    assert {group: offset for group, offset in offsets.items() if offset != -1} == {5: 0, 40: 4, 64: 9, 127: 19}
    assert data == b"fivefortysixty-four"
    three = raw_keyed(plan(snapshot, "raw", 3))
    assert [content(each.delegate) for each in three] == [b"fiveforty", b"sixty-four", b""]


def test_key_groups_without_state_between_others_of_a_canonical_file() -> None:
    snapshot = find("heap").open_told()
    found = next(each for each in snapshot.operators if each.keyed_files)
    third = reassigned(found, 3)
    gap = tuple(replace(each, managed_keyed_state=None) if each.index == 1 else each for each in third.subtasks)
    assert isinstance(plan_parallelism(Operator(snapshot, replace(third, subtasks=gap)), 1, TARGET), Reassigned)


def reassigned(found: Operator, parallelism: int) -> OperatorState:
    planned = plan_parallelism(found, parallelism, TARGET)
    assert isinstance(planned, Reassigned)
    return planned.operator


def test_elements_go_behind_one_header(tmp_path: Path) -> None:
    snapshot = build_snapshot(tmp_path, list_operator("a", "offsets", [b"1", b"22"], [b"333"]), uids=["a"])
    (subtask,) = plan(snapshot, "a", 1).subtasks
    assert elements(subtask.managed_operator_state, "offsets") == [b"1", b"22", b"333"]


def test_elements_are_split_as_flink_does(tmp_path: Path) -> None:
    snapshot = build_snapshot(tmp_path, list_operator("a", "offsets", [b"1", b"22", b"333", b"4444"]), uids=["a"])
    handles = operator_handles(plan(snapshot, "a", 3))
    assert [len(each.states[0].offsets) for each in handles] == [2, 1, 1]
    assert [elements(each, "offsets") for each in handles[1:]] == [[b"333"], [b"4444"]]


def test_no_two_subtasks_have_elements_of_a_state_in_one_file(tmp_path: Path) -> None:
    snapshot = build_snapshot(tmp_path, list_operator("a", "offsets", [b"1", b"22", b"333", b"4444"]), uids=["a"])
    handles = operator_handles(plan(snapshot, "a", 4))
    assert len({each.delegate.handle_name for each in handles if isinstance(each.delegate, ByteStreamStateHandle)}) == 4


def write_texts(index: int, *, compressed: bool) -> OperatorStreamStateHandle:
    """Two list states with three texts each, and a broadcast state with one entry."""
    header = OperatorHeader(
        compressed=compressed,
        lists=tuple(operator_list(name, basic("String")) for name in ("a", "b")),
        broadcasts=(broadcast_state("rules", basic("Byte"), basic("Byte")),),
    )
    columns = plan_columns(derive_layout(basic("String"), LayoutContext()))
    lists = {
        name: columns.encode(pa.array([f"{name}{index}{number}" * number for number in range(3)]))
        for name in ("a", "b")
    }
    data, states = write_operator_file(header, lists, {"rules": (1, b"\1\2")})
    return OperatorStreamStateHandle(states, ByteStreamStateHandle(f"texts {index}", data))


@pytest.mark.slow
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("files", ["copy", "link", "reference"])
def test_handles_name_every_list_element_of_their_files(compressed: bool, files: str, tmp_path: Path) -> None:
    subtasks = (
        SubtaskState(index, managed_operator_state=write_texts(index, compressed=compressed)) for index in range(2)
    )
    snapshot = build_snapshot(tmp_path / "old", operator("op", *subtasks), uids=["op"])
    wanted = sorted(line for line in map(str, _list_elements(snapshot)))
    for parallelism in (5, 1, 3, 2, 7):
        target = tmp_path / str(parallelism)
        sp.rescale(snapshot, str(target), parallelism=parallelism, files=files)
        snapshot = sp.open_snapshot(str(target), uids=["op"], allow_roots=[str(tmp_path)])
        (found,) = snapshot.operators
        assert check_elements(found) == []
        assert sorted(map(str, _list_elements(snapshot))) == wanted
        assert len(found.state("rules").to_arrow()) == parallelism


def _list_elements(snapshot: Snapshot) -> list[object]:
    (found,) = snapshot.operators
    return [value for name in ("a", "b") for value in found.state(name).to_arrow()["value"].to_pylist()]


def test_copies_of_broadcast_state_are_in_one_new_file(tmp_path: Path) -> None:
    subtasks = (SubtaskState(index, managed_operator_state=write_texts(index, compressed=False)) for index in range(2))
    snapshot = build_snapshot(tmp_path, operator("op", *subtasks), uids=["op"])
    handles = operator_handles(plan(snapshot, "op", 40))
    alone = [each for each in handles if len(each.states) == 1]
    assert len(alone) > 10
    assert len({each.delegate for each in alone}) <= 2


def test_more_subtasks_than_elements_have_no_state(tmp_path: Path) -> None:
    snapshot = build_snapshot(tmp_path, list_operator("a", "offsets", [b"1"]), uids=["a"])
    assert [each.managed_operator_state is None for each in plan(snapshot, "a", 3).subtasks] == [False, True, True]


def test_a_state_without_elements_keeps_its_serializer(tmp_path: Path) -> None:
    snapshot = build_snapshot(tmp_path, list_operator("a", "offsets", [], []), uids=["a"])
    first, *others = plan(snapshot, "a", 5).subtasks
    assert elements(first.managed_operator_state, "offsets") == []
    assert all(each.managed_operator_state is None for each in others)


def test_states_that_only_some_subtasks_have_are_joined(tmp_path: Path) -> None:
    subtasks = (
        SubtaskState(0, managed_operator_state=write_list_state("a", [b"1"])),
        SubtaskState(1, managed_operator_state=write_list_state("b", [b"2"])),
    )
    snapshot = build_snapshot(tmp_path, operator("op", *subtasks), uids=["op"])
    (subtask,) = plan(snapshot, "op", 1).subtasks
    assert elements(subtask.managed_operator_state, "a") == [b"1"]
    assert elements(subtask.managed_operator_state, "b") == [b"2"]


def test_a_state_with_two_serializers_is_refused(tmp_path: Path) -> None:
    subtasks = (
        SubtaskState(0, managed_operator_state=write_list_state("a", [b"1"])),
        SubtaskState(1, managed_operator_state=write_list_state("a", [bytes(8)], basic("Long"))),
    )
    snapshot = build_snapshot(tmp_path, operator("op", *subtasks), uids=["op"])
    with pytest.raises(UnsupportedError, match="different serializers") as caught:
        plan(snapshot, "op", 1)
    assert (caught.value.where.operator, caught.value.where.state) == ("op", "a")


def write_states(*, compressed: bool, copies: bytes) -> OperatorStreamStateHandle:
    """Two list states with elements of several lengths, and a broadcast state with one entry."""
    names = ("a", "b")
    header = OperatorHeader(
        compressed=compressed,
        lists=tuple(operator_list(name, basic("BytePrimitiveArray")) for name in names),
        broadcasts=(broadcast_state("rules", basic("Byte"), basic("Byte")),),
    )
    lists = {
        name: Encoded(np.frombuffer(bytes(range(60)), np.uint8), np.array([10, 10 + size, 60], np.int64))
        for name, size in zip(names, (5, 20), strict=True)
    }
    data, states = write_operator_file(header, lists, {"rules": (1, copies)})
    return OperatorStreamStateHandle(states, ByteStreamStateHandle(f"{compressed} {copies!r}", data))


@pytest.mark.parametrize("compressed", [True, False])
def test_plain_and_compressed_elements_and_broadcast_copies_stay_as_they_are(compressed: bool, tmp_path: Path) -> None:
    subtasks = (
        SubtaskState(index, managed_operator_state=write_states(compressed=compressed, copies=bytes((index, index))))
        for index in range(2)
    )
    snapshot = build_snapshot(tmp_path, operator("op", *subtasks), uids=["op"])
    handles = operator_handles(plan(snapshot, "op", 3, narrow=False))
    wanted = [
        bytes(range(start, stop)) for bounds in ([0, 10, 15, 60], [0, 10, 30, 60]) for start, stop in pairwise(bounds)
    ]
    assert [each for handle in handles for each in elements(handle, "a")] == 2 * wanted[:3]
    assert [each for handle in handles for each in elements(handle, "b")] == 2 * wanted[3:]
    copies = []
    for handle in handles:
        data, start, end, count = read_operator_file(content(handle.delegate), handle, "state").broadcast("rules")
        copies.append((count, data[start:end].tobytes()))
    assert copies == [(1, b"\0\0"), (1, b"\1\1"), (1, b"\0\0")]


def test_plain_and_compressed_state_do_not_go_together(tmp_path: Path) -> None:
    subtasks = (
        SubtaskState(index, managed_operator_state=write_states(compressed=compressed, copies=b"\0\0"))
        for index, compressed in enumerate((True, False))
    )
    snapshot = build_snapshot(tmp_path, operator("op", *subtasks), uids=["op"])
    with pytest.raises(UnsupportedError, match="compressed"):
        plan(snapshot, "op", 1)


@pytest.mark.parametrize("parallelism", [2, 3])
def test_a_dropped_state_leaves_the_header(parallelism: int, tmp_path: Path) -> None:
    subtasks = (
        SubtaskState(index, managed_operator_state=write_states(compressed=False, copies=b"\0\0")) for index in range(2)
    )
    snapshot = build_snapshot(tmp_path, operator("op", *subtasks), uids=["op"])
    handles = [(each.index, each.managed_operator_state) for each in snapshot.operator("op").metadata.subtasks]
    present = [(index, handle) for index, handle in handles if handle is not None]
    left = assemble_operator(
        present, parallelism, 2, snapshot.handles, Assembler(TARGET), dropped=frozenset(["a", "rules"])
    )
    wanted = [bytes(range(start, stop)) for start, stop in pairwise([0, 10, 30, 60])]
    assert [each for handle in left for each in elements(handle, "b")] == 2 * wanted
    for handle in left:
        assert handle is not None
        header = read_operator_header(Reader(content(handle.delegate)))
        assert [info.name for info in (*header.lists, *header.broadcasts)] == ["b"]


def test_partitions_of_raw_operator_state_have_no_header(tmp_path: Path) -> None:
    subtasks = (
        SubtaskState(index, raw_operator_state=write_raw_operator(each))
        for index, each in enumerate(([b"1", b"22"], [b"333"]))
    )
    snapshot = build_snapshot(tmp_path, operator("op", *subtasks), uids=["op"])
    (whole,) = plan(snapshot, "op", 1).subtasks
    assert whole.raw_operator_state is not None
    assert content(whole.raw_operator_state.delegate) == b"122333"
    assert whole.raw_operator_state.states[0].offsets == (0, 1, 3)
    split = [each.raw_operator_state for each in plan(snapshot, "op", 3).subtasks]
    assert [content(each.delegate) for each in split if each] == [b"1", b"22", b"333"]


def test_the_same_parallelism_changes_nothing() -> None:
    for case in (find("heap"), find("unaligned"), find("finished")):
        for each in case.open_told().operators:
            assert plan_parallelism(each, each.parallelism, TARGET) == Reassigned(each.metadata, ())


def test_an_operator_that_has_finished_stays() -> None:
    found = [each for each in find("finished").open_told().operators if each.metadata.fully_finished]
    assert found
    assert all(plan_parallelism(each, 5, TARGET) == Reassigned(each.metadata, ()) for each in found)


def test_in_flight_data_is_refused() -> None:
    found = [each for each in find("unaligned").open_told().operators if each.in_flight]
    for each in found:
        with pytest.raises(UnsupportedError, match="in-flight") as caught:
            plan_parallelism(each, 3, TARGET)
        assert caught.value.where.operator == each.label
    assert found


def test_a_finished_subtask_is_refused(tmp_path: Path) -> None:
    subtasks = (SubtaskState(0, finished=True), SubtaskState(1))
    snapshot = build_snapshot(tmp_path, operator("op", *subtasks), uids=["op"])
    with pytest.raises(UnsupportedError, match="subtasks 0 have finished"):
        plan(snapshot, "op", 3)


@pytest.mark.parametrize("parallelism", [0, 129])
def test_a_parallelism_beyond_the_key_groups_is_refused(parallelism: int, tmp_path: Path) -> None:
    snapshot = build_snapshot(tmp_path, list_operator("op", "a", [b"1"]), uids=["op"])
    problem = f"parallelism of {parallelism} does not go with a max parallelism of 128"
    with pytest.raises(UsageError, match=problem) as caught:
        plan(snapshot, "op", parallelism)
    assert caught.value.where.operator == "op"


def make_assembly(target: str) -> FileAssembly:
    first, second = StateStream("a", 4, data=b"abcd"), StateStream("b", 3, data=b"xyz")
    return FileAssembly((StreamRange(first, 1, 3), StreamRange(second, 0, 2)), resolve(target))


def test_a_piece_of_work_goes_to_another_process_and_is_done_twice(tmp_path: Path) -> None:
    piece = pickle.loads(pickle.dumps(make_assembly(str(tmp_path / "new"))))
    assert (piece.run(), piece.run()) == (4, 4)
    assert (tmp_path / "new").read_bytes() == b"bcxy"


def test_a_source_that_is_cut_off_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"abc")
    stream = StateStream("old", 9, resolve(str(tmp_path / "old")))
    with pytest.raises(FormatError, match="bytes 0 to 9 are wanted but the file has 3"):
        FileAssembly((StreamRange(stream, 0, 9),), resolve(str(tmp_path / "new"))).run()
    assert not (tmp_path / "new").exists()


def test_a_narrowed_handle_says_where_its_own_sections_end() -> None:
    snapshot = find("heap").open_told()
    found = next(each for each in snapshot.operators if each.keyed_files)
    for index, part in enumerate(keyed(reassigned(found, 4))):
        whole = snapshot.handles.open_keyed(
            found.metadata.subtasks[index // 2].managed_keyed_state, found.record_context
        )
        file = snapshot.handles.open_keyed(part, found.record_context)
        assert isinstance(file, CanonicalFile)
        assert isinstance(whole, CanonicalFile)
        assert file.header == whole.header
        assert file.sections == tuple(each for each in whole.sections if each.key_group in part.key_groups)


def test_sections_are_found_far_behind_the_header(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = find("heap").open_told()
    found = next(each for each in snapshot.operators if each.keyed_files)
    last = keyed(reassigned(found, 4))[-1]
    near = snapshot.handles.open_keyed(last, found.record_context)
    monkeypatch.setattr(handle_readers, "_LONG_HEADER", 1)
    assert snapshot.handles.open_keyed(last, found.record_context) == near


def test_a_damaged_header_is_told_with_a_narrowed_handle_too() -> None:
    snapshot = find("heap").open_told()
    found = next(each for each in snapshot.operators if each.keyed_files)
    last = keyed(reassigned(found, 4))[-1]
    data = bytearray(read_whole_stream(snapshot.handles.open_stream(last.delegate)))
    data[:4] = b"\xff\xff\xff\xff"
    damaged = replace(last, delegate=ByteStreamStateHandle("damaged", bytes(data)))
    with pytest.raises(FormatError, match="keyed state has version -1, which no release writes"):
        snapshot.handles.open_keyed(damaged, found.record_context)
