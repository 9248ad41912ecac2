"""Rows of a DataFrame by subtask: the key groups of their keys, computed in Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.logical_values import conform
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.datastream.keyed_states import ROW_KIND
from state_pipelines.errors import UsageError
from state_pipelines.keyed.hashing import hash_codes
from state_pipelines.keyed.key_groups import assign_key_groups, compute_operator_indexes
from state_pipelines.spark.types import from_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.codecs.layout import LayoutContext
    from state_pipelines.keyed.hashing import HashExpression
    from state_pipelines.serializers.tree import Serializer

SUBTASK = "__subtask"
"""Column with the index of the subtask that a row belongs to; less the parallelism, and so negative, in rows that are
no elements: they make a subtask without elements run, and tell the highest event time."""

_FIELD = pa.field(SUBTASK, pa.int32(), nullable=False)


@dataclass(frozen=True)
class KeyPartitioner:
    """Finds the subtask of each row (`KeyGroupStreamPartitioner`); can be sent to workers.

    Attributes:
        columns: of the key; several are the fields of a tuple.
        serializer: of the key.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
        layouts: what the layout of the key depends on.
        hashes: `hashCode` of user classes, by class name.
        in_row: the key is the only field of a row, as in the Java operators of PyFlink.
        timestamp: column of event time, whose highest value every subtask gets; None where no watermark is wanted.
        input: column with the number of the input; None where there is one input.
        broadcast: number of the input whose rows go to every subtask; None without.
    """

    columns: tuple[str, ...]
    serializer: Serializer
    parallelism: int
    max_parallelism: int
    layouts: LayoutContext
    hashes: tuple[tuple[str, HashExpression], ...] = ()
    in_row: bool = False
    timestamp: str | None = None
    input: str | None = None
    broadcast: int | None = None

    def add_subtasks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with the column `SUBTASK`, then the rows that tell the subtasks the highest event time.

        Raises:
            UsageError: a key is null.
            ValueRangeError: a key has no form in its serializer.
            UnsupportedError: the hash of the keys is not known.
        """
        wanted = plan_columns(derive_layout(self.serializer, self.layouts)).type
        highest: dict[int, int] = {}
        schema: pa.Schema | None = None
        for given in batches:
            schema = given.schema
            self._note_highest(given, highest)
            batch = given
            if self.broadcast is not None:
                is_broadcast = pc.equal(given.column(self.input), self.broadcast)
                batch, copied = given.filter(pc.invert(is_broadcast)), given.filter(is_broadcast)
                for subtask in range(self.parallelism) if len(copied) else ():
                    yield copied.append_column(_FIELD, pa.array([subtask] * len(copied), pa.int32()))
            keys = conform(from_spark(self._read_keys(batch), wanted), wanted, "key")
            codes = hash_codes(self.serializer, keys, expressions=dict(self.hashes))
            groups = assign_key_groups(codes, self.max_parallelism)
            subtasks = compute_operator_indexes(groups, self.parallelism, self.max_parallelism)
            yield batch.append_column(_FIELD, pa.array(subtasks))
        for number, reached in highest.items():
            assert schema is not None
            yield self._tell_highest(schema, number, reached)

    def _note_highest(self, batch: pa.RecordBatch, highest: dict[int, int]) -> None:
        """Keep the highest event time of each input; the only one is 0."""
        if self.timestamp is None:
            return
        times = batch.column(self.timestamp)
        inputs = None if self.input is None else batch.column(self.input)
        for number in [0] if inputs is None else inputs.unique().to_pylist():
            own = times if inputs is None else times.filter(pc.equal(inputs, number))
            reached = pc.max(own).as_py()
            if reached is not None:
                highest[number] = max(reached, highest.get(number, reached))

    def _tell_highest(self, schema: pa.Schema, number: int, reached: int) -> pa.RecordBatch:
        """Make a row per subtask with the highest event time of an input; negative as all rows without an element."""
        count = self.parallelism
        known = {self.timestamp: reached, self.input: number}
        columns = [
            pa.array([known[each.name]] * count, each.type) if each.name in known else pa.nulls(count, each.type)
            for each in schema
        ]
        # Arrow's streams have one schema, down to the fields that are never null.
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        return rows.append_column(_FIELD, pa.array(range(-count, 0), pa.int32()))

    def _read_keys(self, batch: pa.RecordBatch) -> pa.Array:
        found = [batch.column(name) for name in self.columns]
        for name, column in zip(self.columns, found, strict=True):
            if column.null_count:
                raise UsageError(
                    f"a row has no key: {name} is null",
                    hint="Flink refuses null keys; leave such rows out of the input",
                )
        if len(found) == 1:
            key = found[0]
        else:
            key = pa.StructArray.from_arrays(found, names=[f"f{index}" for index in range(len(found))])
        if not self.in_row:
            return key
        kinds = pa.repeat(pa.scalar(ROW_KIND), len(batch))
        return pa.StructArray.from_arrays([kinds, key], names=["row_kind", "f0"])
