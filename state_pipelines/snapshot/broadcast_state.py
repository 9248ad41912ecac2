"""Broadcast state of an operator: a map that every subtask holds a copy of."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from state_pipelines.codecs.columns import explain
from state_pipelines.errors import UnsupportedError, UsageError, at
from state_pipelines.keyed.tables import TableOptions
from state_pipelines.operatorstate.backend import read_broadcast_state
from state_pipelines.snapshot.list_state import NonKeyedState, ValueColumn, select_fields
from state_pipelines.snapshot.state import StateStatistics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.metadata.key_groups import KeyGroupRange


class BroadcastState(NonKeyedState):
    """A broadcast state.

    Columns: `subtask` int32, `map_key`, `map_value`; one row per pair and subtask. A state that cannot be decoded gives
    one row per subtask with all pairs in `value_bytes`, since nothing but the serializers tells where a pair ends; so
    does a subtask with a pair that cannot be decoded, where that is possible.
    """

    @property
    def kind(self) -> str:  # noqa: D102
        return "BROADCAST"

    def _columns(self, options: TableOptions | None) -> tuple[ValueColumn, ValueColumn]:
        keys = [part.info.key_serializer for part in self.parts]
        return ValueColumn(self.operator, keys, options or TableOptions()), self.value_column(options)

    @cached_property
    def undecoded(self) -> str:  # noqa: D102
        key, value = self._columns(None)
        return key.reason or value.reason

    def make_schema(self, options: TableOptions | None = None) -> pa.Schema:  # noqa: D102
        key, value = self._columns(options)
        fields = [pa.field("subtask", pa.int32(), False)]
        may_fail = False
        if key.columns is not None and value.columns is not None:
            fields += [pa.field("map_key", key.columns.type), pa.field("map_value", value.columns.type)]
            may_fail = key.keeps_bytes or value.keeps_bytes
        if may_fail or key.columns is None or value.columns is None:
            fields.append(pa.field("value_bytes", pa.binary(), may_fail))
        if key.reason or value.reason or may_fail:
            fields.append(pa.field("reason", pa.string(), may_fail))
        return select_fields(fields, options)

    def batches(  # noqa: D102
        self, options: TableOptions | None = None, key_groups: KeyGroupRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        if key_groups is not None:
            raise UsageError("operator state has no key groups")
        key, value = self._columns(options)
        schema = self.make_schema(options)
        for part in self.parts:
            data, start, end, count = part.entries()
            columns: dict[str, pa.Array] = {}
            reason = key.reason or value.reason
            whole = pa.array([data[start:end].tobytes()], pa.binary())
            with at(operator=self.operator.label, state=self.name, file=part.file.name):
                if key.columns is not None and value.columns is not None:
                    context = self.operator.snapshot.layout_context
                    try:
                        columns["map_key"], columns["map_value"] = read_broadcast_state(part.file, part.info, context)
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
            columns["subtask"] = pa.array(np.full(count, part.subtask, np.int32))
            columns["reason"] = pa.array([reason or None] * count, pa.string())
            yield pa.RecordBatch.from_arrays([columns[each] for each in schema.names], schema=schema)

    def count(self) -> StateStatistics:  # noqa: D102
        entries = [part.entries() for part in self.parts]
        return StateStatistics(
            sum(count for _, _, _, count in entries), sum(end - start for _, start, end, _ in entries)
        )
