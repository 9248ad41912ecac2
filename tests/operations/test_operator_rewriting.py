"""Element files: rows of operator state on their way into new files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.errors import UsageError, ValueRangeError
from state_pipelines.operations.write.operator_rewrite import (
    ElementEncoder,
    read_elements,
    require_equal_copies,
    write_elements,
)
from state_pipelines.serializers.build import basic
from state_pipelines.serializers.state_meta_info import broadcast_state, operator_list
from state_pipelines.snapshot.operator_state import NonKeyedState
from state_pipelines.storage import resolve
from tests.snapshot.built import build_snapshot, list_operator

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.serializers.state_meta_info import StateMetaInfo

LIST = operator_list("list", basic("Short"))
RULES = broadcast_state("rules", basic("Byte"), basic("Short"))


def encoder(info: StateMetaInfo = LIST) -> ElementEncoder:
    return ElementEncoder(info, LayoutContext(), LayoutContext())


def rows(*elements: tuple[int, int, int | None]) -> pa.RecordBatch:
    subtasks, places, values = zip(*elements, strict=True)
    return pa.RecordBatch.from_pydict(
        {
            "subtask": pa.array(subtasks, pa.int32()),
            "list_index": pa.array(places, pa.int32()),
            "value": pa.array(values, pa.int16()),
        }
    )


def test_every_subtask_gets_files_of_its_own(tmp_path: Path) -> None:
    batches = [rows((0, 0, 1), (0, 1, 2), (2, 0, 3)), rows((2, 1, 4))]
    first, second = write_elements(encoder(), batches, resolve(str(tmp_path)))
    assert [(each.subtask, each.records) for each in (first, second)] == [(0, 2), (2, 2)]
    assert read_elements([first]).data.tobytes() == b"\0\1\0\2"
    assert read_elements([second]).data.tobytes() == b"\0\3\0\4"
    assert read_elements([second]).stops.tolist() == [2, 4]


def test_places_say_the_order(tmp_path: Path) -> None:
    found = write_elements(encoder(), [rows((0, 2, 3), (1, 0, 9), (0, 0, 1), (0, 1, 2))], resolve(str(tmp_path)))
    mine = [each for each in found if each.subtask == 0]
    assert len(mine) == 2
    assert read_elements(mine).data.tobytes() == b"\0\1\0\2\0\3"


def test_a_place_that_is_taken_twice_is_refused(tmp_path: Path) -> None:
    found = write_elements(encoder(), [rows((0, 1, 3), (0, 1, 1))], resolve(str(tmp_path)))
    with pytest.raises(UsageError, match="same list_index"):
        read_elements(found)


def test_nothing_becomes_no_elements(tmp_path: Path) -> None:
    assert write_elements(encoder(), [], resolve(str(tmp_path))) == []
    assert read_elements([]).stops.tolist() == []
    assert read_elements([]).data.tobytes() == b""


def test_entries_keep_the_order_of_their_rows(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict(
        {"subtask": pa.array([0, 0], pa.int32()), "map_key": pa.array([7, 1]), "map_value": pa.array([8, 2])}
    )
    found = write_elements(encoder(RULES), [batch], resolve(str(tmp_path)))
    assert read_elements(found).data.tobytes() == b"\7\0\x08\1\0\2"
    assert read_elements(found).stops.tolist() == [3, 6]


def test_values_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    wide = rows((0, 0, 1)).set_column(2, "value", pa.array([1 << 20]))
    with pytest.raises(ValueRangeError):
        write_elements(encoder(), [wide], resolve(str(tmp_path)))


def test_many_batches_of_one_subtask_are_one_file(tmp_path: Path) -> None:
    batches = [rows(*((3, start + each, each) for each in range(100))) for start in range(0, 1000, 100)]
    (found,) = write_elements(encoder(), batches, resolve(str(tmp_path)))
    assert found.records == 1000
    elements = read_elements([found])
    assert np.frombuffer(elements.data, ">i2").tolist() == [*range(100)] * 10
    assert len(elements.stops) == 1000


def test_copies_that_differ_are_told_with_their_subtasks(tmp_path: Path) -> None:
    state = build_snapshot(tmp_path, list_operator("op", "list", [], [], []), uids=["op"]).operator("op").state("list")
    assert isinstance(state, NonKeyedState)
    subtask_states = state.subtask_states
    require_equal_copies(subtask_states, [b"a", b"a", b"a"], "list")
    with pytest.raises(UsageError, match="subtasks 0 and 2 hold"):
        require_equal_copies(subtask_states, [b"a", b"a", b"b"], "list")
