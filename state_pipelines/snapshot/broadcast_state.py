"""Broadcast state of an operator: a map that every subtask holds a copy of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from state_pipelines.codecs.columns import explain
from state_pipelines.codecs.serializer_layouts import OpaqueValues
from state_pipelines.errors import UnsupportedError, at
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.operatorstate import read_broadcast_state
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.snapshot.list_state import NonKeyedState, NonKeyedTable, ValueColumn, select_fields
from state_pipelines.snapshot.subtask_states import StateStatistics

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.snapshot.list_state import NonKeyedSubtaskState


@dataclass(frozen=True)
class BroadcastTable(NonKeyedTable):
    """Turns what subtasks have of a broadcast state into batches; see `BroadcastState` for the columns."""

    @cached_property
    def key(self) -> ValueColumn:
        """Columns for the keys of all subtasks."""
        context = replace(self.context, opaque_values=OpaqueValues.NONE)
        return ValueColumn((each.key_serializer for each in self.infos), self.options, context)

    @property
    def undecoded(self) -> str:  # noqa: D102
        return self.key.reason or self.value.reason

    @cached_property
    def schema(self) -> pa.Schema:  # noqa: D102
        key, value = self.key, self.value
        found = [pa.field("subtask", pa.int32(), False)]
        may_fail = False
        if key.columns is not None and value.columns is not None:
            found += [pa.field("map_key", key.columns.type), pa.field("map_value", value.columns.type)]
            may_fail = key.keeps_bytes or value.keeps_bytes
        if may_fail or key.columns is None or value.columns is None:
            found.append(pa.field("value_bytes", pa.binary(), may_fail))
        if self.undecoded or may_fail:
            found.append(pa.field("reason", pa.string(), may_fail))
        return select_fields(found, self.options)

    def batches(self, subtask_states: Sequence[NonKeyedSubtaskState]) -> Iterator[pa.RecordBatch]:  # noqa: D102
        key, value, schema = self.key, self.value, self.schema
        for subtask_state in subtask_states:
            columns: dict[str, pa.Array] = {}
            reason = self.undecoded
            with at(file=subtask_state.name):
                file = subtask_state.read()
                data, start, end, count = file.broadcast(subtask_state.info.name)
                whole = pa.array([data[start:end].tobytes()], pa.binary())
                if key.columns is not None and value.columns is not None:
                    try:
                        columns["map_key"], columns["map_value"] = read_broadcast_state(
                            file, subtask_state.info, self.context
                        )
                        columns["value_bytes"] = pa.nulls(count, pa.binary())
                    except UnsupportedError as error:
                        if "reason" not in schema.names:
                            raise
                        reason, count = explain(error), 1
                        columns["map_key"] = pa.nulls(1, key.columns.type)
                        columns["map_value"] = pa.nulls(1, value.columns.type)
                        columns["value_bytes"] = whole
                else:
                    count = 1
                    columns["value_bytes"] = whole
            columns["subtask"] = pa.array(np.full(count, subtask_state.subtask, np.int32))
            columns["reason"] = pa.array([reason or None] * count, pa.string())
            yield pa.RecordBatch.from_arrays([columns[each] for each in schema.names], schema=schema)


class BroadcastState(NonKeyedState):
    """A broadcast state.

    Columns: `subtask` int32, `map_key`, `map_value`; one row per pair and subtask. A state that cannot be decoded gives
    one row per subtask with all pairs in `value_bytes`, since nothing but the serializers tells where a pair ends; so
    does a subtask with a pair that cannot be decoded, where that is possible.
    """

    @property
    def kind(self) -> StateKind:  # noqa: D102
        return StateKind.BROADCAST

    @cached_property
    def undecoded(self) -> str:  # noqa: D102
        return self.make_table().undecoded

    def make_table(self, options: TableOptions | None = None) -> BroadcastTable:  # noqa: D102
        return BroadcastTable(self.infos, options or TableOptions(), self.operator.snapshot.layout_context)

    def count(self) -> StateStatistics:  # noqa: D102
        number = size = 0
        with at(operator=self.operator.label, state=self.name):
            for subtask_state in self.subtask_states:
                _, start, end, count = subtask_state.entries()
                number += count
                size += end - start
        return StateStatistics(number, size)
