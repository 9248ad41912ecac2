"""A key that is asked for is found, and only its key group is read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.keyed.operator_table import OperatorTableOptions
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.operations.convert import convert
from state_pipelines.snapshot import open_snapshot
from tests.snapshot.savepoints import ALL_TYPES, orders
from tests.storages import CountedFileSystem, empty_counted

if TYPE_CHECKING:
    from state_pipelines.snapshot import Operator
    from state_pipelines.snapshot.keyed_state import KeyedState

STATES = [
    (savepoint, operator.label, state.name)
    for savepoint in (*ALL_TYPES, orders())
    for operator in savepoint.open().operators
    for state in operator.keyed_states
    if state.kind != "TIMER"
]


@pytest.mark.slow
@pytest.mark.parametrize(("savepoint", "operator", "state"), STATES, ids=str)
def test_every_key_is_found(savepoint: Any, operator: str, state: str) -> None:
    found = savepoint.open().operator(operator).state(state)
    columns = ("state_key", "key_group")
    everything = found.to_arrow(TableOptions(columns=columns)).to_pylist()
    for row in everything[:: max(1, len(everything) // 5)]:
        wanted = [each for each in everything if each["state_key"] == row["state_key"]]
        assert found.to_arrow(TableOptions(columns=columns, key=row["state_key"])).to_pylist() == wanted


@pytest.fixture
def stored() -> Operator:
    """The orders, on a storage that notes what is read."""
    root = empty_counted()
    target = f"{root.path}/savepoint"
    snapshot = orders().open()
    for path in snapshot.location.directory.filesystem.find(str(orders().path)):
        with open(path, "rb") as file:  # noqa: PTH123
            root.filesystem.pipe_file(f"{target}/{path.rpartition('/')[2]}", file.read())
    from state_pipelines.snapshot.snapshot import open_location
    from state_pipelines.storage import Location, SnapshotLocation, join

    directory = Location(root.filesystem, target)
    opened = open_location(SnapshotLocation(directory, join(directory, "_metadata")), snapshot.declarations)
    return opened.operator("orders")


def test_only_the_key_group_of_the_key_is_read(stored: Operator) -> None:
    state: KeyedState = stored.keyed_states[0]
    key = state.to_arrow().column("state_key")[7].as_py()
    (group,) = set(state.to_arrow(TableOptions(key=key)).column("key_group").to_pylist())
    CountedFileSystem.reads.clear()
    rows = state.to_arrow(TableOptions(key=key))
    read = sum(end - start for _, start, end in CountedFileSystem.reads)
    files = [each.file for each in state.subtask_states]
    sections = [each for file in files for each in file.sections if each.key_group == group]  # type: ignore[attr-defined]
    assert len(rows) > 0
    assert (len(CountedFileSystem.reads), read) == (1, sum(each.size for each in sections))


def test_the_table_of_all_states_reads_only_the_key_group_too(stored: Operator) -> None:
    key = stored.to_arrow().column("state_key")[7].as_py()
    CountedFileSystem.reads.clear()
    assert len(stored.to_arrow(OperatorTableOptions(key=key))) > 0
    assert len(CountedFileSystem.reads) == 1


def test_a_key_of_another_key_group_is_not_there(stored: Operator) -> None:
    state = stored.keyed_states[0]
    key, group = (state.to_arrow().column(name)[7].as_py() for name in ("state_key", "key_group"))
    other = KeyGroupRange((group + 1) % stored.max_parallelism, 1)
    CountedFileSystem.reads.clear()
    assert len(state.to_arrow(TableOptions(key=key), other)) == 0
    assert len(stored.to_arrow(OperatorTableOptions(key=key), other)) == 0
    assert CountedFileSystem.reads == []


@pytest.mark.slow
@pytest.mark.parametrize("format", ["heap", "rocksdb"])
def test_a_key_is_found_in_other_formats(tmp_path: Any, format: str) -> None:
    state = orders().open().operator("orders").keyed_states[0]
    key = state.to_arrow().column("state_key")[7].as_py()
    result = convert(orders().open(), str(tmp_path / "new"), format)
    found = open_snapshot(result.path).operator("orders").state(state.name)
    options = TableOptions(key=key, columns=("state_key", "value")) if state.kind == "VALUE" else TableOptions(key=key)
    expected, rows = (json.dumps(each.to_arrow(options).to_pylist(), default=str) for each in (state, found))
    assert rows == expected != "[]"
