"""Rows of a DataFrame by subtask: the key groups of their keys, computed in Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.codecs.arrow_coercion import conform
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.datastream.pyflink_layout import ROW_KIND
from state_pipelines.errors import UsageError
from state_pipelines.keyed.hashing import hash_codes
from state_pipelines.keyed.key_group_assignment import assign_key_groups, compute_operator_indexes
from state_pipelines.spark.types import from_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.codecs.layout_context import LayoutContext
    from state_pipelines.keyed.hashing import HashExpression
    from state_pipelines.serializers.tree import Serializer

SUBTASK = "__subtask"
"""Column with the index of the subtask that a row belongs to."""


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
    """

    columns: tuple[str, ...]
    serializer: Serializer
    parallelism: int
    max_parallelism: int
    layouts: LayoutContext
    hashes: tuple[tuple[str, HashExpression], ...] = ()
    in_row: bool = False

    def add_subtasks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with the column `SUBTASK`.

        Raises:
            UsageError: a key is null.
            ValueRangeError: a key has no form in its serializer.
            UnsupportedError: the hash of the keys is not known.
        """
        wanted = plan_columns(derive_layout(self.serializer, self.layouts)).type
        for batch in batches:
            keys = conform(from_spark(self._read_keys(batch), wanted), wanted, "key")
            codes = hash_codes(self.serializer, keys, expressions=dict(self.hashes))
            groups = assign_key_groups(codes, self.max_parallelism)
            subtasks = compute_operator_indexes(groups, self.parallelism, self.max_parallelism)
            yield batch.append_column(pa.field(SUBTASK, pa.int32(), nullable=False), pa.array(subtasks))

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
