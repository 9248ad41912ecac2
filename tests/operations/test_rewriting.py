from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest

from state_pipelines.codecs.kryo import load_classes
from state_pipelines.errors import FormatError
from state_pipelines.keyed.canonical import CanonicalFile, copy_records, open_canonical
from state_pipelines.keyed.keyed_file import FileFormat, KeyedFormat
from state_pipelines.keyed.state_table import RecordEncoder, TableOptions
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.metadata.streams import StateStream
from state_pipelines.operations.write import keyed_rewrite
from state_pipelines.operations.write.keyed_rewrite import (
    LARGE,
    FileRewrite,
    WrittenFile,
    align_key_groups,
    copy_states,
    merge_spills,
)
from state_pipelines.operations.write.spills import StateSpill, find_blocks, write_state_spill
from state_pipelines.snapshot.keyed_state import KeyedState, KeyedSubtaskState
from state_pipelines.storage import join, resolve
from tests.snapshot.savepoints import ALL_TYPES, Savepoint, orders, types

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext, Runs
    from state_pipelines.keyed.record_layout import KeyedRecords

HALF = [each for each in ALL_TYPES if ("rocksdb" in str(each)) == ("2.2" in str(each))]
"""Of each release the savepoints of one backend: canonical files are the same from both."""

KEYED = [
    ("state-kinds", "value"),
    ("state-kinds", "sum"),
    ("state-kinds", "average"),
    ("state-kinds", "list"),
    ("state-kinds", "map"),
    ("state-kinds", "_timer_state/event_user-timers"),
    ("ttl-states", "value"),
    ("ttl-states", "sum"),
    ("ttl-states", "average"),
    ("ttl-states", "list"),
    ("ttl-states", "map"),
    ("ttl-states", "composites"),
    ("tumbling-windows", "window-contents"),
]


def take_turns(savepoints: list[Savepoint]) -> list[Any]:
    """Parameters: each savepoint, joined and streamed in turn."""
    ways = (("joined", LARGE), ("streamed", 0))
    half = len(savepoints) // 2
    turns = ((each, *ways[(number + number // half) % 2]) for number, each in enumerate(savepoints))
    return [pytest.param(each, large, id=f"{each}-{name}") for each, name, large in turns]


@pytest.fixture(autouse=True, params=[LARGE, 0], ids=["joined", "streamed"])
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All key groups are written together, or all one by one, block after block."""
    monkeypatch.setattr("state_pipelines.operations.write.keyed_rewrite.LARGE", request.param)


@cache
def load_states(savepoint: Savepoint) -> tuple[KeyedState, ...]:
    classes = load_classes("types.Guest extends types.Person: [visits: int]")
    operators = savepoint.open(classes=classes).operators
    return tuple(state for each in operators for state in each.states if isinstance(state, KeyedState))


def find(operator: str, name: str) -> KeyedState:
    (state,) = [each for each in load_states(types()) if (each.operator.label, each.name) == (operator, name)]
    return state


def encode(state: KeyedState, table: pa.Table, target: Path) -> StateSpill:
    return write_state_spill(RecordEncoder(state.layout, state.name), table.to_batches(), resolve(str(target)))


def plan(
    state: KeyedState, subtask_state: KeyedSubtaskState, spills: tuple[StateSpill, ...], directory: Path
) -> FileRewrite:
    states = range(len(subtask_state.file.header.states))
    return FileRewrite(
        subtask=subtask_state.subtask,
        base=subtask_state.file,
        header=subtask_state.file.header,
        copied=tuple((each, each) for each in states if each != subtask_state.state_id),
        encoded=((subtask_state.state_id, spills),),
        key_groups=subtask_state.file.key_groups,
        context=subtask_state.file.context,
        target=join(resolve(str(directory)), f"subtask-{subtask_state.subtask}"),
    )


def open_written(rewrite: FileRewrite, written: WrittenFile) -> CanonicalFile:
    stream = StateStream(str(rewrite.target), written.size, location=rewrite.target)
    return open_canonical(stream, rewrite.key_groups, written.offsets, rewrite.context)


def rewrite_state(state: KeyedState, spills: tuple[StateSpill, ...], directory: Path) -> KeyedState:
    """The state as it is in the new files."""
    found = []
    for subtask_state in state.subtask_states:
        rewrite = plan(state, subtask_state, spills, directory)
        written = merge_spills(rewrite)
        assert Path(rewrite.target.path).stat().st_size == written.size
        found.append(replace(subtask_state, file=open_written(rewrite, written)))
    return KeyedState(state.operator, tuple(found))


@dataclass(frozen=True)
class Disordered(KeyedFormat):
    """A file that gives its key groups in an order of its own."""

    file: KeyedFile
    order: tuple[int, ...]

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
        groups = dict(self.file.scan_key_groups(self.file.key_groups))
        yield from ((group, next(iter(groups.values()))) for group in self.order)

    def split(self, *arguments: Any) -> Iterator[KeyedFile]:
        return self.file.split(*arguments)


@pytest.mark.parametrize(("order", "expected"), [((), []), ((0,), [0]), ((0, 2, 9), [0, 2, 9])])
def test_every_key_group_of_a_range_is_met(order: tuple[int, ...], expected: list[int]) -> None:
    state = find("state-kinds", "value")
    groups = KeyGroupRange(0, 10)
    aligned = list(align_key_groups(Disordered(state.subtask_states[0].file, order), groups))
    assert [group for group, _ in aligned] == list(range(10))
    assert [group for group, runs in aligned if runs] == expected


@pytest.mark.parametrize("order", [(2, 1), (1, 1), (1, 2, 1), (10,), (11, 3)])
def test_no_key_group_is_dropped_silently(order: tuple[int, ...]) -> None:
    state = find("state-kinds", "value")
    file = Disordered(state.subtask_states[0].file, order)
    with pytest.raises(FormatError, match="comes twice, out of order") as caught:
        list(align_key_groups(file, KeyGroupRange(0, 10)))
    assert caught.value.where.file == file.name


def test_a_file_in_disorder_is_not_rewritten(tmp_path: Path) -> None:
    state = find("state-kinds", "value")
    subtask_state = state.subtask_states[0]
    file = Disordered(subtask_state.file, (3, 2))
    with pytest.raises(FormatError, match="key group 2 comes twice, out of order"):
        merge_spills(copy_states(0, file, file.header, join(resolve(str(tmp_path)), "new")))


def raw_rows(state: KeyedState) -> list[tuple[object, ...]]:
    table = state.to_arrow(TableOptions(raw=True))
    return sorted(tuple(row.values()) for row in table.to_pylist())


def rows(table: pa.Table) -> list[str]:
    return sorted(str(row) for row in table.to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize(("savepoint", "large"), take_turns(HALF), indirect=["large"])
def test_every_state_reads_back_as_it_was(savepoint: Savepoint, tmp_path: Path) -> None:
    for number, state in enumerate(load_states(savepoint)):
        directory = tmp_path / str(number)
        directory.mkdir()
        table = state.to_arrow()
        spill = encode(state, table, directory / "part")
        assert spill.records == state.count().entries
        written = rewrite_state(state, (spill,), directory)
        # NaN is not equal to itself, but its bytes are; a null in a map of the heap backend may have bytes behind it.
        assert written.to_arrow().equals(table) or raw_rows(written) == raw_rows(state)


@pytest.mark.parametrize("savepoint", ALL_TYPES, ids=str)
def test_states_that_are_not_encoded_are_copied_byte_for_byte(savepoint: Savepoint, tmp_path: Path) -> None:
    states = load_states(savepoint)
    state = next(each for each in states if each.name == "sum" and each.operator.label == "ttl-states")
    spill = encode(state, state.to_arrow(), tmp_path / "part")
    written = rewrite_state(state, (spill,), tmp_path)
    for other in (each for each in states if each.operator is state.operator):
        moved = tuple(
            replace(new, state_id=old.state_id)
            for new, old in zip(written.subtask_states, other.subtask_states, strict=True)
        )
        assert raw_rows(KeyedState(other.operator, moved)) == raw_rows(other)


@pytest.mark.parametrize(("operator", "name"), KEYED)
def test_rows_may_come_in_any_order_and_in_many_parts(operator: str, name: str, tmp_path: Path) -> None:
    state = find(operator, name)
    table = state.to_arrow(TableOptions(flatten=False))
    order = list(range(len(table)))
    random.Random(1).shuffle(order)
    shuffled = table.take(order)
    third = len(table) // 3
    pieces = [shuffled.slice(0, third), shuffled.slice(third, 0), shuffled.slice(third)]
    spills = tuple(encode(state, piece, tmp_path / f"part-{number}") for number, piece in enumerate(pieces))
    assert rows(rewrite_state(state, spills, tmp_path).to_arrow(TableOptions(flatten=False))) == rows(table)


@pytest.mark.parametrize(("operator", "name"), KEYED)
def test_a_key_group_may_have_many_runs_in_one_part(
    operator: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("state_pipelines.operations.write.spills.BLOCK", 1)
    monkeypatch.setattr("state_pipelines.operations.write.keyed_rewrite.BATCH", 100)
    state = find(operator, name)
    table = state.to_arrow(TableOptions(flatten=False))
    single = pa.Table.from_batches([batch for row in range(len(table)) for batch in table.slice(row, 1).to_batches()])
    spill = encode(state, single, tmp_path / "part")
    assert len(find_blocks(spill.location)) == len(table)
    assert rows(rewrite_state(state, (spill,), tmp_path).to_arrow(TableOptions(flatten=False))) == rows(table)


@pytest.mark.parametrize("state", ["value", "list", "map", "average"])
def test_key_groups_may_be_computed(state: str, tmp_path: Path) -> None:
    found = find("ttl-states", state)
    table = found.to_arrow()
    spill = encode(found, table.drop_columns(["key_group", "subtask"]), tmp_path / "part")
    assert rewrite_state(found, (spill,), tmp_path).to_arrow().equals(table)


def test_a_state_without_rows_goes(tmp_path: Path) -> None:
    state = find("ttl-states", "sum")
    spill = encode(state, state.to_arrow().slice(0, 0), tmp_path / "part")
    assert spill.records == 0
    assert rewrite_state(state, (spill,), tmp_path).count().entries == 0


def test_written_files_tell_the_records_of_every_state(tmp_path: Path) -> None:
    state = find("ttl-states", "sum")
    spill = encode(state, state.to_arrow(), tmp_path / "part")
    written = [merge_spills(plan(state, each, (spill,), tmp_path)) for each in state.subtask_states]
    counts = {
        each.subtask_states[0].state_id: each.count().entries
        for each in load_states(types())
        if each.operator is state.operator
    }
    assert {each: sum(dict(file.records)[each] for file in written) for each in counts} == counts


def test_a_file_without_a_base_holds_the_encoded_state_alone(tmp_path: Path) -> None:
    state = find("ttl-states", "sum")
    (first, *_) = state.subtask_states
    spill = encode(state, state.to_arrow(), tmp_path / "part")
    header = replace(first.file.header, states=(state.info,))
    rewrite = replace(
        plan(state, first, (spill,), tmp_path), base=None, header=header, copied=(), encoded=((0, (spill,)),)
    )
    file = open_written(rewrite, merge_spills(rewrite))
    alone = KeyedState(state.operator, (replace(first, file=file, state_id=0),))
    assert raw_rows(alone) == raw_rows(KeyedState(state.operator, (first,)))


def test_states_may_get_other_ids(tmp_path: Path) -> None:
    state = find("ttl-states", "sum")
    (first, *_) = state.subtask_states
    count = len(first.file.header.states)
    rewrite = replace(
        plan(state, first, (), tmp_path),
        header=replace(first.file.header, states=first.file.header.states[::-1]),
        copied=tuple((count - 1 - each, each) for each in range(count)),
        encoded=(),
    )
    file = open_written(rewrite, merge_spills(rewrite))
    moved = KeyedState(state.operator, (replace(first, file=file, state_id=count - 1 - first.state_id),))
    assert raw_rows(moved) == raw_rows(KeyedState(state.operator, (first,)))


def test_a_broken_part_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_bytes(b"\xff" * 20)
    state = find("ttl-states", "sum")
    spill = StateSpill(resolve(str(path)), 1, KeyGroupRange(0, 128))
    with pytest.raises(FormatError, match="not a spill"):
        merge_spills(plan(state, state.subtask_states[0], (spill,), tmp_path))


class Halves:
    """Gives the records of a state back, in two halves; the result is their number."""

    def __init__(self) -> None:
        self.result = 0

    def start(self) -> Halves:
        return Halves()

    def rewrite(self, records: KeyedRecords, subtask: int) -> Iterator[KeyedRecords]:
        self.result += len(records)
        middle = len(records) // 2
        yield copy_records(records.cut(0, middle))
        yield copy_records(records.cut(middle, len(records)))


@pytest.mark.slow
@pytest.mark.parametrize(("savepoint", "large"), take_turns(ALL_TYPES), indirect=["large"])
def test_records_that_keep_their_keys_need_no_spill(
    savepoint: Savepoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("state_pipelines.operations.write.keyed_rewrite.BATCH", 1000)
    states = [each for each in load_states(savepoint) if (each.operator.label, each.name) in KEYED]
    for number, state in enumerate(states):
        for subtask_state in state.subtask_states:
            name = f"{number}-{subtask_state.subtask}"
            copying = copy_states(
                subtask_state.subtask,
                subtask_state.file,
                subtask_state.file.header,
                join(resolve(str(tmp_path)), f"{name}-copied"),
            )
            copied = tuple(each for each in copying.copied if each[0] != subtask_state.state_id)
            target = join(resolve(str(tmp_path)), f"{name}-rewritten")
            rewritten = ((subtask_state.state_id, subtask_state.state_id, Halves()),)
            written = merge_spills(replace(copying, copied=copied, rewritten=rewritten, target=target))
            expected = merge_spills(copying)
            assert (written.offsets, written.states) == (expected.offsets, expected.states)
            # Block after block, the states that are copied come first.
            if keyed_rewrite.LARGE:
                assert (tmp_path / target.name).read_bytes() == (tmp_path / copying.target.name).read_bytes()
            assert written.results == {state.name: dict(expected.records)[subtask_state.state_id]}


@pytest.mark.slow
def test_orders_keep_their_files_byte_for_byte(tmp_path: Path) -> None:
    for state in load_states(orders()):
        directory = tmp_path / f"{state.operator.label}-{state.name.replace('/', '-')}"
        directory.mkdir()
        spill = encode(state, state.to_arrow(), directory / "part")
        assert raw_rows(rewrite_state(state, (spill,), directory)) == raw_rows(state)


def test_a_state_is_copied_under_several_names(tmp_path: Path) -> None:
    state = find("state-kinds", "map")
    held = state.subtask_states[0]
    header = held.file.header
    info = replace(header.states[held.state_id], name="other")
    copying = copy_states(held.subtask, held.file, header, join(resolve(str(tmp_path)), "copied"))
    header = replace(header, states=(*header.states, info))
    copied = (*copying.copied, (len(header.states) - 1, held.state_id))
    written = merge_spills(replace(copying, header=header, copied=copied))
    records = dict(written.records)
    assert records[len(header.states) - 1] == records[held.state_id] > 0
    assert written.states["other"] == written.states[state.name]
