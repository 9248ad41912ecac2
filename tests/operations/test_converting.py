from __future__ import annotations

import pickle
import uuid
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import state_pipelines as sp
from state_pipelines.codecs.kryo import load_classes
from state_pipelines.errors import (
    FormatError,
    NotFoundError,
    ProofError,
    StateError,
    TargetExistsError,
    UnsupportedError,
    UsageError,
)
from state_pipelines.keyed.canonical import CanonicalFile
from state_pipelines.keyed.heap import HeapFile
from state_pipelines.keyed.keyed_file import FileFormat, KeyedFormat, combine_files, digest_states
from state_pipelines.keyed.raw_timers import RawTimersFile
from state_pipelines.keyed.rocksdb import RocksFile
from state_pipelines.metadata import (
    CheckpointProperties,
    SubtaskState,
    list_references,
    read_metadata,
    write_metadata,
)
from state_pipelines.metadata.checkpoint import CheckpointType, SavepointFormatType, SavepointType
from state_pipelines.metadata.handles import KeyGroupsSavepointStateHandle, RelativeFileStateHandle
from state_pipelines.operations.convert import (
    ConversionRequest,
    ConversionResult,
    InFlight,
    convert,
    plan_conversion,
    run_conversion,
)
from state_pipelines.operations.dump import dump
from state_pipelines.operations.local_processes import run_tasks
from state_pipelines.operations.proofs import ProofReport
from state_pipelines.operations.write.keyed_rewrite import Format, complete_rewrites, copy_states
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.snapshot import Declarations, Snapshot, open_snapshot
from state_pipelines.storage import Location, PathMapping, SnapshotLocation, exists, file_size, join, read_file, resolve
from state_pipelines.storage.resolution import MANIFEST_FILE
from tests.flink.harness import diff_entries
from tests.keyed.test_raw_timers import KRYO_SECTION
from tests.snapshot.built import write_raw_keyed
from tests.snapshot.savepoints import Savepoint, orders
from tests.snapshots import CLASSES, OWN, UNKNOWN, Case, select

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext, Runs
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.snapshot import Operator

FILES: dict[str, type] = {"canonical": CanonicalFile, "heap": HeapFile, "rocksdb": RocksFile}


def find(line: str, name: str) -> Case:
    (case,) = (each for each in select(line, name) if each in OWN)
    return case


def list_cases() -> list[tuple[Case, str]]:
    """Every format of Flink 2.2 in every format; of 1.20 what it writes in another way."""
    cases = [each for each in OWN if each.version.startswith("2.2") and each.case != "heap-native"]
    older = ("rocksdb-incremental", "rocksdb-heap-timers", "changelog-rocksdb-files", "unaligned")
    cases += [each for each in OWN if each.version.startswith("1.20") and each.case in older]
    formats = [each.value for each in Format]
    # Null SQL timestamps, which heap native state does not carry.
    refused = ("heap", "heap-snappy", "rocksdb", "rocksdb-snappy")
    return [(case, each) for case in cases for each in formats if not (each == "heap" and case.case in refused)]


def in_flight(case: Case) -> InFlight:
    return InFlight.KEEP if case.case == "unaligned" else InFlight.REFUSE


def files_of(snapshot: Snapshot) -> set[type]:
    return {type(file) for operator in snapshot.operators for _, file in operator.keyed_files}


def operator_of(case: Case) -> Operator:
    return case.open().operator("few-states")


@pytest.mark.slow
@pytest.mark.parametrize(("case", "target"), list_cases(), ids=lambda each: str(each))
def test_every_format_becomes_every_format(case: Case, target: str, tmp_path: Path) -> None:
    result = convert(case.open(), str(tmp_path / "new"), target, in_flight=in_flight(case))
    moved = (tmp_path / "new").rename(tmp_path / "moved")
    new = open_snapshot(str(moved), uids=case.uids)
    if target in FILES:
        assert files_of(new) == {FILES[target]}
    else:
        assert result.converted == 0
    difference = diff_entries(dump(case.open()), dump(new))
    assert not difference, str(difference)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target"), [("rocksdb", "heap"), ("rocksdb", "rocksdb"), ("heap", "rocksdb")])
def test_orders_come_back(source: str, target: str, tmp_path: Path) -> None:
    convert(orders().open(), str(tmp_path / "one"), source)
    convert(open_snapshot(str(tmp_path / "one")), str(tmp_path / "two"), target)
    convert(open_snapshot(str(tmp_path / "two")), str(tmp_path / "three"), "canonical")
    assert not diff_entries(orders().entries(), dump(open_snapshot(str(tmp_path / "three"), uids=orders().uids)))


@pytest.mark.slow
def test_compression_is_chosen(tmp_path: Path) -> None:
    convert(orders().open(), str(tmp_path / "small"), compress=True)
    convert(open_snapshot(str(tmp_path / "small")), str(tmp_path / "large"), compress=False)
    for name, compressed in (("small", True), ("large", False)):
        snapshot = open_snapshot(str(tmp_path / name), uids=orders().uids)
        headers = [file.header for operator in snapshot.operators for _, file in operator.keyed_files]
        assert {header.compressed for header in headers} == {compressed}
        assert not diff_entries(orders().entries(), dump(snapshot))


@pytest.mark.parametrize("format", ["rocksdb", "keep"])
def test_compression_is_not_to_be_chosen(format: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="compression"):
        convert(orders().open(), str(tmp_path / "new"), format, compress=True)
    assert list(tmp_path.iterdir()) == []


def test_unknown_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="canonical, heap, rocksdb, keep"):
        convert(orders().open(), str(tmp_path / "new"), "parquet")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "expected"),
    [
        ("canonical", SavepointFormatType.CANONICAL),
        ("heap", SavepointFormatType.NATIVE),
        ("rocksdb", SavepointFormatType.NATIVE),
    ],
)
def test_the_result_is_a_savepoint_of_its_format(format: str, expected: SavepointFormatType, tmp_path: Path) -> None:
    convert(find("2.2", "rocksdb-incremental").open(), str(tmp_path / "new"), format)
    properties = open_snapshot(str(tmp_path / "new")).metadata.properties
    assert isinstance(properties, CheckpointProperties)
    assert isinstance(properties.checkpoint_type, SavepointType)
    assert properties.checkpoint_type.format_type is expected


def test_canonical_state_gets_the_handle_that_every_backend_takes(tmp_path: Path) -> None:
    convert(find("2.2", "rocksdb-full").open(), str(tmp_path / "new"))
    (operator,) = (each for each in open_snapshot(str(tmp_path / "new")).operators if each.keyed_files)
    handles = {type(subtask.managed_keyed_state) for subtask in operator.metadata.subtasks}
    assert handles == {KeyGroupsSavepointStateHandle}


@pytest.mark.slow
def test_files_of_forst_are_written_anew_for_rocksdb(tmp_path: Path) -> None:
    assert convert(find("2.2", "forst").open(), str(tmp_path / "new"), "rocksdb").converted == 2


@pytest.mark.slow
@pytest.mark.parametrize("format", ["canonical", "heap", "rocksdb"])
@pytest.mark.parametrize("line", ["1.20", "2.2"])
def test_raw_timers_become_timer_states(line: str, format: str, tmp_path: Path) -> None:
    case = find(line, "rocksdb-heap-timers")
    result = convert(case.open(), str(tmp_path / "new"), format)
    operator = open_snapshot(str(tmp_path / "new"), uids=case.uids).operator("few-states")
    assert [subtask.raw_keyed_state for subtask in operator.metadata.subtasks] == [None, None]
    assert not [file for _, file in operator.keyed_files if isinstance(file, RawTimersFile)]
    assert "operator few-states: the timers in raw keyed state become timer states" in result.notes


def with_subtasks(snapshot: Snapshot, uid: str, change: Any, target: Path) -> Snapshot:
    """The snapshot with changed subtasks of an operator, its files at their places."""
    wanted = snapshot.operator(uid).metadata.operator_id
    metadata = replace(
        snapshot.metadata,
        operator_states=tuple(
            replace(each, subtasks=tuple(map(change, each.subtasks))) if each.operator_id == wanted else each
            for each in snapshot.metadata.operator_states
        ),
    )
    target.mkdir()
    (target / "_metadata").write_bytes(write_metadata(metadata))
    return open_snapshot(str(target), path_mapping=snapshot.path_mapping, uids=snapshot.uids)


def describe_raw(subtask: SubtaskState) -> tuple[object, ...]:
    """Raw keyed state without the name of the inlined handle, which loses the old directory."""
    handle: Any = subtask.raw_keyed_state
    return handle.key_groups, handle.offsets, handle.delegate.data


def test_raw_state_that_is_not_timers_is_copied(tmp_path: Path) -> None:
    case = find("2.2", "rocksdb-heap-timers")

    def spoil(subtask: SubtaskState) -> SubtaskState:
        handle: Any = subtask.raw_keyed_state
        data = b"\x07" * len(handle.delegate.data)
        return replace(subtask, raw_keyed_state=replace(handle, delegate=replace(handle.delegate, data=data)))

    spoiled = with_subtasks(case.open(), "few-states", spoil, tmp_path / "old")
    result = convert(spoiled, str(tmp_path / "new"), "canonical")
    subtasks = open_snapshot(str(tmp_path / "new"), uids=case.uids).operator("few-states").metadata.subtasks
    assert list(map(describe_raw, subtasks)) == list(
        map(describe_raw, spoiled.operator("few-states").metadata.subtasks)
    )
    assert "operator few-states: its raw keyed state is not timers and is copied as it is" in result.notes


@pytest.mark.parametrize(
    ("name", "format", "note"),
    [
        ("changelog-heap-materialized", "canonical", "its changes become one state"),
        ("rocksdb-incremental", "heap", "state.backend.type: hashmap"),
        ("heap-checkpoint", "rocksdb", "state.backend.type: rocksdb"),
        ("heap-checkpoint", "rocksdb", "timer-service.factory: HEAP"),
        ("heap", "heap", "SQL timestamps that are null"),
    ],
)
def test_notes_say_what_a_format_does_not_carry(name: str, format: str, note: str, tmp_path: Path) -> None:
    plan = plan_conversion(
        find("2.2", name).open(), resolve(str(tmp_path / "new")), ConversionRequest(format=Format(format))
    )
    assert [each for each in plan.notes if note in each]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", UNKNOWN, ids=lambda case: case.name)
def test_entries_whose_ends_nobody_finds_are_refused_before_anything_is_written(case: Case, tmp_path: Path) -> None:
    target = resolve(str(tmp_path / "new"))
    is_heap = "heap" in case.name
    formats = [Format.CANONICAL, Format.ROCKSDB] if is_heap else [Format.HEAP]
    for format in formats:
        with pytest.raises(UnsupportedError, match="no lengths") as found:
            plan_conversion(case.open(), target, ConversionRequest(format=format))
        assert "--serializer" in found.value.hint
        assert (found.value.where.operator, found.value.where.state) == ("purses", "purse")
    for format in (Format.HEAP,) if is_heap else (Format.CANONICAL, Format.ROCKSDB):
        plan_conversion(case.open(), target, ConversionRequest(format=format))
    assert not (tmp_path / "new").exists()


def test_unread_entries_are_written_where_nothing_is_compared(tmp_path: Path) -> None:
    (case,) = (each for each in UNKNOWN if each.name == "unknown-2.2-canonical")
    convert(case.open(), str(tmp_path / "new"), "heap", verify=False)
    assert open_snapshot(str(tmp_path / "new")).operators


@pytest.mark.parametrize("name", ["heap", "heap-snappy"])
def test_canonical_needs_no_note(name: str, tmp_path: Path) -> None:
    assert (
        plan_conversion(
            find("2.2", name).open(), resolve(str(tmp_path)), ConversionRequest(format=Format.CANONICAL)
        ).notes
        == ()
    )


@pytest.mark.parametrize("name", ["heap", "rocksdb-snappy"])
def test_null_sql_timestamps_are_refused_in_heap_files(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="a SQL timestamp is null") as caught:
        convert(find("2.2", name).open(), str(tmp_path / "new"), "heap")
    assert (caught.value.where.operator, caught.value.where.state) == ("composite-types", "null-tuple")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_sql_timestamps_that_are_not_null_are_carried(tmp_path: Path) -> None:
    case = find("2.2", "heap-native")
    classes = load_classes(CLASSES)
    convert(case.open_told(), str(tmp_path / "one"), "rocksdb")
    convert(open_snapshot(str(tmp_path / "one"), classes=classes), str(tmp_path / "two"), "heap")
    new = open_snapshot(str(tmp_path / "two"), uids=case.uids, classes=classes)
    assert not diff_entries(dump(case.open_told()), dump(new))


def test_in_flight_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="in-flight data of") as caught:
        convert(find("2.2", "unaligned").open(), str(tmp_path / "new"))
    assert "drop" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_in_flight_data_that_are_kept_make_a_checkpoint(tmp_path: Path) -> None:
    case = find("2.2", "unaligned")
    result = convert(case.open(), str(tmp_path / "new"), "rocksdb", in_flight="keep")
    new = open_snapshot(str(tmp_path / "new"))
    assert isinstance(new.metadata.properties, CheckpointProperties)
    assert isinstance(new.metadata.properties.checkpoint_type, CheckpointType)
    assert [len(each.input_channel_state) for operator in new.operators for each in operator.metadata.subtasks] == [
        len(each.input_channel_state) for operator in case.open().operators for each in operator.metadata.subtasks
    ]
    assert "the result is a checkpoint" in result.notes[0]


def test_in_flight_data_are_dropped_on_request(tmp_path: Path) -> None:
    result = convert(find("2.2", "unaligned").open(), str(tmp_path / "new"), in_flight="drop")
    new = open_snapshot(str(tmp_path / "new"))
    subtasks = [each for operator in new.operators for each in operator.metadata.subtasks]
    assert not [each for each in subtasks if each.input_channel_state or each.result_subpartition_state]
    assert new.kind == "savepoint"
    assert "these records are lost" in result.notes[0]


@dataclass(frozen=True)
class Forgetful(KeyedFormat):
    """A file that gives its writer no record of the first key group that has some."""

    file: KeyedFile

    format: ClassVar[FileFormat] = FileFormat.COMBINED

    @property
    def header(self) -> KeyedHeader:
        return self.file.header

    @property
    def key_groups(self) -> KeyGroupRange:
        return self.file.key_groups

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def context(self) -> RecordContext:
        return self.file.context

    def scan(self, *arguments: Any) -> Iterator[tuple[int, KeyedRecords]]:
        return self.file.scan(*arguments)

    def scan_key_groups(self, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        groups = self.file.scan_key_groups(key_groups)
        next(groups)
        return groups

    def split(self, *arguments: Any) -> Iterator[KeyedFile]:
        return self.file.split(*arguments)


class Backwards(Forgetful):
    """A file that gives its writer the key groups in descending order."""

    def scan_key_groups(self, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        return iter([*self.file.scan_key_groups(key_groups)][::-1])


@pytest.mark.parametrize("format", list(FILES))
def test_a_key_group_out_of_order_is_not_dropped(format: str, tmp_path: Path) -> None:
    plan = plan_conversion(
        find("2.2", "changelog-heap-materialized").open(),
        resolve(str(tmp_path / "new")),
        ConversionRequest(format=Format(format)),
        verify=False,
    )
    tasks = tuple(replace(task, source=Backwards(task.source)) for task in plan.tasks)
    with pytest.raises(StateError):
        run_conversion(replace(plan, tasks=tasks))
    assert list(tmp_path.iterdir()) == []


def named_files(snapshot: Snapshot) -> set[str]:
    handles = (reference.handle for reference in list_references(snapshot.metadata))
    return {each.relative_path for each in handles if isinstance(each, RelativeFileStateHandle)}


@pytest.mark.slow
@pytest.mark.parametrize("format", ["rocksdb", "canonical", "heap"])
def test_a_piece_that_is_done_again_leaves_nothing_behind(format: str, tmp_path: Path) -> None:
    source = orders().open() if format != "canonical" else find("2.2", "rocksdb-incremental").open()

    def run_twice(pieces: Sequence[Any], what: str) -> list[Any]:
        for piece in pieces:
            piece.run()
        return [pickle.loads(pickle.dumps(piece)).run() for piece in pieces]

    plan = plan_conversion(source, resolve(str(tmp_path / "new")), ConversionRequest(format=Format(format)))
    result = run_conversion(plan, run_twice)
    new = open_snapshot(str(tmp_path / "new"), uids=source.uids)
    assert {each.name for each in (tmp_path / "new").iterdir()} == named_files(new) | {"_metadata", MANIFEST_FILE}
    assert (result.converted, result.verified) == (len(plan.tasks), True)
    assert not diff_entries(dump(source), dump(new))


def test_more_files_of_an_attempt_before_are_removed(tmp_path: Path) -> None:
    plan = plan_conversion(orders().open(), resolve(str(tmp_path)), ConversionRequest(format=Format.ROCKSDB))
    task = plan.tasks[0]
    first = task.run()
    names = {each.name for each in tmp_path.iterdir()}
    for number in (len(names) - 1, len(names)):
        (tmp_path / f"{task.name}-{number}").write_bytes(b"left over")
    assert task.run().size == first.size
    assert {each.name for each in tmp_path.iterdir()} == names


@pytest.mark.parametrize("format", ["canonical", "keep"])
def test_files_that_are_only_copied_are_not_called_verified(format: str, tmp_path: Path) -> None:
    result = convert(orders().open(), str(tmp_path / "new"), format)
    assert (result.converted, result.verified) == (0, None)
    assert result.copied


@pytest.mark.parametrize("format", list(FILES))
def test_timers_that_are_not_read_are_copied_with_the_reason(format: str, tmp_path: Path) -> None:
    case = find("2.2", "rocksdb-heap-timers")

    def put(subtask: SubtaskState) -> SubtaskState:
        handle: Any = subtask.raw_keyed_state
        return replace(
            subtask, raw_keyed_state=write_raw_keyed({handle.key_groups.start: KRYO_SECTION}, handle.key_groups)
        )

    changed = with_subtasks(case.open(), "few-states", put, tmp_path / "old")
    result = convert(changed, str(tmp_path / "new"), format)
    subtasks = open_snapshot(str(tmp_path / "new"), uids=case.uids).operator("few-states").metadata.subtasks
    before = [each.raw_keyed_state for each in changed.operator("few-states").metadata.subtasks]
    assert [each.raw_keyed_state for each in subtasks] == before != [None, None]
    (note,) = (each for each in result.notes if "are not read and are copied" in each)
    assert "com.acme.Key" in note
    assert "--classes" in note


def test_damaged_timers_stop_the_conversion(tmp_path: Path) -> None:
    def cut(subtask: SubtaskState) -> SubtaskState:
        handle: Any = subtask.raw_keyed_state
        data = handle.delegate.data[:-1]
        return replace(subtask, raw_keyed_state=replace(handle, delegate=replace(handle.delegate, data=data)))

    damaged = with_subtasks(find("2.2", "rocksdb-heap-timers").open(), "few-states", cut, tmp_path / "old")
    with pytest.raises(FormatError):
        convert(damaged, str(tmp_path / "new"), "canonical")
    assert [each.name for each in tmp_path.iterdir()] == ["old"]


@pytest.mark.slow
@pytest.mark.parametrize("format", list(FILES))
def test_what_does_not_read_back_equal_is_not_published(format: str, tmp_path: Path) -> None:
    plan = plan_conversion(
        find("2.2", "changelog-heap-materialized").open(),
        resolve(str(tmp_path / "new")),
        ConversionRequest(format=Format(format)),
    )
    tasks = tuple(replace(task, source=Forgetful(task.source)) for task in plan.tasks)
    with pytest.raises(ProofError, match="reads_back_equal") as caught:
        run_conversion(replace(plan, tasks=tasks))
    assert isinstance(caught.value.report, ProofReport)
    (check,) = caught.value.report.failed
    assert check.counts is not None
    # The files lack what the writer forgot.
    assert check.counts.missing > 0
    assert all("after" in row.absent for row in check.rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_without_verification_nobody_would_know(tmp_path: Path) -> None:
    source = find("2.2", "changelog-heap-materialized").open()
    plan = plan_conversion(source, resolve(str(tmp_path / "new")), ConversionRequest(format=Format.HEAP), verify=False)
    tasks = tuple(replace(task, source=Forgetful(task.source)) for task in plan.tasks)
    assert not run_conversion(replace(plan, tasks=tasks)).verified
    assert diff_entries(dump(source), dump(open_snapshot(str(tmp_path / "new"), uids=source.uids)))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(TargetExistsError):
        convert(orders().open(), str(tmp_path), "heap")
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
def test_digests_tell_what_was_written(tmp_path: Path) -> None:
    first = convert(orders().open(), str(tmp_path / "heap"), "heap")
    second = convert(orders().open(), str(tmp_path / "rocksdb"), "rocksdb")
    assert first.states == second.states
    counts = {(operator, state): digest.records for operator, state, digest in first.states}
    assert counts["orders", "order"] == 200


@pytest.mark.slow
def test_processes_do_the_same(tmp_path: Path) -> None:
    alone = sp.convert(str(orders().path), str(tmp_path / "one"), format="heap")
    told: list[tuple[int, int]] = []
    shared = convert(
        orders().open(),
        str(tmp_path / "two"),
        "heap",
        run=partial(run_tasks, processes=2, report=lambda done, total: told.append((done, total))),
    )
    assert {digest for *_, digest in shared.states} == {digest for *_, digest in alone.states}
    assert (4, 4) in told


@pytest.mark.slow
def test_errors_of_processes_keep_their_kind(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="a SQL timestamp is null"):
        sp.convert(find("2.2", "heap").open(), str(tmp_path / "new"), format="heap", processes=2)
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        sp.convert(str(tmp_path / "none"), str(tmp_path / "new"))


def test_a_combined_file_has_the_records_of_both() -> None:
    operator = operator_of(find("2.2", "rocksdb-heap-timers"))
    files = [file for index, file in operator.keyed_files if index == 0]
    combined = combine_files(files)
    expected = {name: digest for file in files for name, digest in digest_states(file, file.key_groups).items()}
    assert len(files) == 2
    assert digest_states(combined, combined.key_groups) == expected
    by_group = [group for group, _ in combined.scan_key_groups(combined.key_groups)]
    assert by_group == sorted(set(by_group))


@pytest.mark.slow
def test_the_parts_of_a_combined_file_make_it_up() -> None:
    operator = operator_of(find("2.2", "rocksdb-heap-timers"))
    combined = combine_files([file for index, file in operator.keyed_files if index == 0])
    parts = list(combined.split(1))
    count = sum(len(records) for split in parts for _, records in split.scan(range(5)))
    assert len(parts) > 1
    assert count == sum(len(records) for _, records in combined.scan(range(5)))


def test_files_with_the_same_state_are_not_combined() -> None:
    operator = operator_of(find("2.2", "heap-checkpoint"))
    (file, *_) = (file for _, file in operator.keyed_files)
    with pytest.raises(FormatError, match="both hold this state"):
        combine_files([file, file])


def test_other_subtasks_become_canonical_with_the_first(tmp_path: Path) -> None:
    operator = operator_of(find("2.2", "rocksdb-heap-timers"))
    index, file = operator.keyed_files[0]
    target = resolve(str(tmp_path))
    rewrite = copy_states(index, file, file.header, join(target, "first"))
    completed = complete_rewrites(operator, [rewrite], target)
    assert [(each.subtask, type(each.base)) for each in completed] == [(0, RocksFile), (1, RocksFile)]


def test_canonical_subtasks_stay(tmp_path: Path) -> None:
    operator = orders().open().operator("orders")
    index, file = operator.keyed_files[0]
    target = resolve(str(tmp_path))
    rewrite = copy_states(index, file, file.header, join(target, "first"))
    assert complete_rewrites(operator, [rewrite], target) == [rewrite]


def keep(case: Case | Savepoint, target: object, **options: Any) -> ConversionResult:
    return convert(case.open(), str(target), "keep", **options)


@pytest.mark.slow
@pytest.mark.parametrize("files", list(FileMode))
def test_every_way_to_take_files_over_keeps_every_entry(files: FileMode, tmp_path: Path) -> None:
    keep(orders(), tmp_path / "old")
    old = open_snapshot(str(tmp_path / "old"), uids=orders().uids)
    result = convert(old, str(tmp_path / "new"), "keep", files=files.value)
    assert result.bytes == (0 if files is not FileMode.COPY else sum(map(file_size, own_files(old))))
    new = open_snapshot(str(tmp_path / "new"), uids=orders().uids, allow_roots=[old.path])
    assert not diff_entries(orders().entries(), dump(new))


def own_files(snapshot: Snapshot) -> list[Location]:
    handles = [each.handle for each in list_references(snapshot.metadata)]
    places = [snapshot.handles.open_stream(handle).location for handle in handles]
    return [place for place in places if place is not None]


def test_a_link_that_is_not_possible_is_refused_before_anything_is_written() -> None:
    with pytest.raises(UsageError, match="one volume"):
        convert(orders().open(), "memory://not-linked", files="link", format="keep")
    assert not exists(resolve("memory://not-linked"))


def test_a_reference_is_noted(tmp_path: Path) -> None:
    result = keep(orders(), tmp_path / "new", files="reference")
    assert any("not self-contained" in note for note in result.notes)


@pytest.mark.slow
def test_a_move_removes_what_it_has_copied_and_compared(tmp_path: Path) -> None:
    keep(orders(), tmp_path / "old")
    count = len(list((tmp_path / "old").iterdir()))
    old = open_snapshot(str(tmp_path / "old"), uids=orders().uids)
    result = convert(old, "memory://moved/away", "keep", move=True)
    assert (result.checksums, result.removed) == (True, count)
    assert not (tmp_path / "old").exists()
    assert not diff_entries(orders().entries(), dump(open_snapshot("memory://moved/away", uids=orders().uids)))


def test_a_move_by_links_leaves_the_bytes_where_they_are(tmp_path: Path) -> None:
    keep(orders(), tmp_path / "old")
    numbers = {each.stat().st_ino for each in (tmp_path / "old").iterdir() if each.name[0] != "_"}
    convert(open_snapshot(str(tmp_path / "old")), str(tmp_path / "new"), "keep", files="link", move=True)
    assert {each.stat().st_ino for each in (tmp_path / "new").iterdir() if each.name[0] != "_"} == numbers
    assert not (tmp_path / "old").exists()


def test_a_move_leaves_a_directory_with_something_else(tmp_path: Path) -> None:
    keep(orders(), tmp_path / "old")
    (tmp_path / "old" / "notes.txt").write_text("mine")
    convert(open_snapshot(str(tmp_path / "old")), str(tmp_path / "new"), move=True)
    assert [each.name for each in (tmp_path / "old").iterdir()] == ["notes.txt"]


def test_a_checkpoint_with_shared_files_is_not_moved(tmp_path: Path) -> None:
    (case,) = (each for each in OWN if each.case == "rocksdb-incremental" and each.version.startswith("2.2"))
    with pytest.raises(UnsupportedError, match="files outside its directory"):
        keep(case, tmp_path / "new", move=True)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("options", [{"verify": False}, {"files": "reference"}], ids=str)
def test_a_move_leaves_nothing_unchecked_or_behind(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a move removes the old snapshot"):
        keep(orders(), tmp_path / "new", move=True, **options)


@pytest.mark.parametrize("place", ["referring", "job/chk-1"])
def test_a_snapshot_whose_files_another_one_needs_is_not_moved(tmp_path: Path, place: str) -> None:
    savepoints = tmp_path / "savepoints"
    keep(orders(), savepoints / "old")
    # The one is referred to by another name of its directory.
    (tmp_path / "alias").symlink_to(savepoints)
    convert(open_snapshot(str(tmp_path / "alias" / "old")), str(savepoints / place), "keep", files="reference")
    before = sorted((savepoints / "old").iterdir())
    with pytest.raises(UsageError, match=f"the snapshot {savepoints / place} needs a file that would be removed"):
        convert(open_snapshot(str(savepoints / "old")), str(tmp_path / "new"), "keep", move=True)
    assert sorted((savepoints / "old").iterdir()) == before
    assert not (tmp_path / "new").exists()


def test_another_name_of_a_snapshot_does_not_keep_it_from_being_moved(tmp_path: Path) -> None:
    keep(orders(), tmp_path / "old")
    (tmp_path / "latest").symlink_to(tmp_path / "old")
    convert(open_snapshot(str(tmp_path / "old")), str(tmp_path / "new"), "keep", move=True)
    assert not (tmp_path / "old").exists()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["copy", "link"])
def test_a_snapshot_beside_one_with_files_of_its_own_is_moved(tmp_path: Path, mode: str) -> None:
    keep(orders(), tmp_path / "old")
    convert(open_snapshot(str(tmp_path / "old")), str(tmp_path / "other"), "keep", files=mode)
    convert(open_snapshot(str(tmp_path / "old")), str(tmp_path / "new"), "keep", move=True)
    assert not (tmp_path / "old").exists()
    assert not diff_entries(orders().entries(), dump(open_snapshot(str(tmp_path / "other"), uids=orders().uids)))


def test_a_snapshot_beside_one_that_cannot_be_read_is_not_moved(tmp_path: Path) -> None:
    keep(orders(), tmp_path / "old")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "_metadata").write_bytes(b"no metadata")
    with pytest.raises(StateError) as caught:
        convert(open_snapshot(str(tmp_path / "old")), str(tmp_path / "new"), "keep", move=True)
    assert str(tmp_path / "other" / "_metadata") in str(caught.value)
    assert (tmp_path / "old" / "_metadata").exists()
    assert not (tmp_path / "new").exists()


def test_a_snapshot_is_not_moved_to_where_it_is(tmp_path: Path) -> None:
    keep(orders(), tmp_path / "old")
    with pytest.raises(UsageError, match="where it is"):
        convert(open_snapshot(str(tmp_path / "old")), str(tmp_path / "old"), move=True)


def test_a_failed_move_removes_nothing(tmp_path: Path) -> None:
    keep(orders(), tmp_path / "old")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "taken").write_text("mine")
    before = sorted(each.name for each in (tmp_path / "old").iterdir())
    with pytest.raises(TargetExistsError):
        convert(open_snapshot(str(tmp_path / "old")), str(tmp_path / "new"), move=True)
    assert sorted(each.name for each in (tmp_path / "old").iterdir()) == before


@pytest.fixture
def bucket() -> Iterator[Location]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed").ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    location = resolve(f"s3://{uuid.uuid4()}", key="k", secret="s", client_kwargs={"endpoint_url": url})
    location.filesystem.mkdir(location.path)
    yield location
    server.stop()


@pytest.mark.slow
def test_files_go_to_an_object_store_with_their_checksums_compared(bucket: Location) -> None:
    plan = plan_conversion(orders().open(), join(bucket, "new"), ConversionRequest(format=Format.KEEP), checksums=True)
    result = run_conversion(plan)
    assert (result.checksums, result.copied) == (True, len(own_files(orders().open())))
    place = SnapshotLocation(join(bucket, "new"), join(bucket, "new", "_metadata"))
    new = Snapshot(place, read_metadata(read_file(place.metadata), "new"), PathMapping(), Declarations(orders().uids))
    assert not diff_entries(orders().entries(), dump(new))
