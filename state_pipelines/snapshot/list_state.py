"""List state of an operator: split or union redistribution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import Columns, plan_columns
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import UnsupportedError, UsageError, at
from state_pipelines.keyed.tables import TableOptions
from state_pipelines.operatorstate.backend import OperatorStateFile, decode_list_state
from state_pipelines.snapshot.state import State, StateStatistics

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.metadata.key_groups import KeyGroupRange
    from state_pipelines.serializers.metainfo import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot.snapshot import Operator

Spans = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class OperatorPart:
    """The state of one subtask.

    Attributes:
        subtask: index of the subtask.
        file: the file that holds it.
        info: what the header of the file says of it.
    """

    subtask: int
    file: OperatorStateFile
    info: StateMetaInfo

    def elements(self) -> Spans:
        """Bytes, and where each element of a list state starts and at most ends."""
        return self.file.elements(self.info.name)

    def entries(self) -> tuple[npt.NDArray[np.uint8], int, int, int]:
        """Bytes, where the pairs of a broadcast state start and at most end, and how many there are."""
        return self.file.broadcast(self.info.name)


class ValueColumn:
    """Columns of what all subtasks wrote, or why there are none.

    Args:
        operator: the operator.
        serializers: one per subtask.
        options: what is wanted.
    """

    def __init__(self, operator: Operator, serializers: Sequence[Serializer], options: TableOptions) -> None:
        self.columns: Columns | None = None
        self.reason = ""
        self._asked = {"reason", "value_bytes"} & set(options.columns or ())
        if options.raw:
            return
        try:
            layouts = {derive_layout(each, operator.snapshot.layout_context) for each in serializers}
            if len(layouts) > 1:
                raise UnsupportedError("the subtasks hold the state with different serializers")
            self.columns = plan_columns(layouts.pop())
        except UnsupportedError as error:
            self.reason = error.what

    @property
    def keeps_bytes(self) -> bool:
        """Whether there are columns for the values that cannot be decoded."""
        return self.columns is not None and (self.columns.may_fail or bool(self._asked))


class NonKeyedState(State):
    """What list and broadcast state have in common: parts per subtask, and no keys."""

    parts: tuple[OperatorPart, ...]

    def __init__(self, operator: Operator, parts: tuple[OperatorPart, ...]) -> None:
        super().__init__(operator)
        self.parts = parts

    @property
    def info(self) -> StateMetaInfo:  # noqa: D102
        return self.parts[0].info

    @property
    def is_keyed(self) -> bool:  # noqa: D102
        return False

    def value_column(self, options: TableOptions | None) -> ValueColumn:
        """Columns for the values of all subtasks."""
        serializers = [part.info.value_serializer for part in self.parts]
        return ValueColumn(self.operator, serializers, options or TableOptions())


class OperatorListState(NonKeyedState):
    """A list state of an operator.

    Columns: `subtask` int32, `list_index` int32 (position in the subtask's list), `value`; also `value_bytes` and
    `reason` for elements that cannot be decoded, where that may well be or they are asked for.
    """

    @property
    def kind(self) -> str:  # noqa: D102
        return self.info.distribution_mode or "SPLIT_DISTRIBUTE"

    @cached_property
    def undecoded(self) -> str:  # noqa: D102
        return self.value_column(None).reason

    def make_schema(self, options: TableOptions | None = None) -> pa.Schema:  # noqa: D102
        column = self.value_column(options)
        fields = [pa.field("subtask", pa.int32(), False), pa.field("list_index", pa.int32(), False)]
        may_fail = column.keeps_bytes
        if column.columns is not None:
            fields.append(pa.field("value", column.columns.type))
        if column.columns is None or may_fail:
            fields.append(pa.field("value_bytes", pa.binary(), may_fail))
        if column.reason or may_fail:
            fields.append(pa.field("reason", pa.string(), may_fail))
        return select_fields(fields, options)

    def batches(  # noqa: D102
        self, options: TableOptions | None = None, key_groups: KeyGroupRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        if key_groups is not None:
            raise UsageError("operator state has no key groups")
        column = self.value_column(options)
        schema = self.make_schema(options)
        for part in self.parts:
            data, starts, ends = part.elements()
            with at(operator=self.operator.label, state=self.name, file=part.file.name):
                columns = {
                    "subtask": pa.array(np.full(len(starts), part.subtask, np.int32)),
                    "list_index": pa.array(np.arange(len(starts), dtype=np.int32)),
                    "reason": pa.array([column.reason] * len(starts), pa.string()),
                }
                raw = plan_columns(lay.Rest()).decode(data, starts, ends).array
                if column.columns is None:
                    columns["value_bytes"] = raw
                else:
                    context, lenient = self.operator.snapshot.layout_context, "reason" in schema.names
                    decoded = decode_list_state(part.file, part.info, context, lenient=lenient)
                    columns["value"] = decoded.array
                    columns["reason"] = decoded.reasons()
                    columns["value_bytes"] = pc.if_else(columns["reason"].is_valid(), raw, None)
            yield pa.RecordBatch.from_arrays([columns[each] for each in schema.names], schema=schema)

    def count(self) -> StateStatistics:  # noqa: D102
        spans = [part.elements() for part in self.parts]
        return StateStatistics(
            sum(len(starts) for _, starts, _ in spans), sum(int((ends - starts).sum()) for _, starts, ends in spans)
        )


def select_fields(fields: list[pa.Field], options: TableOptions | None) -> pa.Schema:
    """Only the wanted columns, in the order of the wish.

    Raises:
        UsageError: a wanted column does not exist.
    """
    if options is None or options.columns is None:
        return pa.schema(fields)
    by_name = {each.name: each for each in fields}
    for name in options.columns:
        if name not in by_name:
            raise UsageError(f"the state has no column {name}", hint=f"it has {', '.join(by_name)}")
    return pa.schema([by_name[name] for name in options.columns])
