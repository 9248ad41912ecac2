"""Digests of the expected rows of a migrated state, taken while they are written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from state_pipelines.codecs.columns import column_type
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.keyed.state_table import TTL_COLUMN
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.spark.row_digests import VALUES, Digested, RowColumns, choose_columns

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.digests import Sums
    from state_pipelines.operations.migration.round_trips import Return
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator


@dataclass(frozen=True)
class ExpectedDigests:
    """Digests of the rows that a migration writes of a state, for comparison with the rows read back.

    Attributes:
        columns: what was digested of them.
        digested: their digests.
        source: the old state whose rows, which they result from, were digested too; empty where none were.
        old: the digests of those.
        carried: old and new name of digests that are the same, since these values stay.
    """

    columns: RowColumns
    digested: Digested
    source: str
    old: Digested
    carried: tuple[tuple[str, str], ...]

    @cached_property
    def old_sums(self) -> Sums:
        """Digests of the rows that these result from."""
        expected = self.digested.sums
        return {
            group: {old: expected[group][new] for old, new in self.carried} | sums
            for group, sums in self.old.sums.items()
        }


def find_payload_type(shape: StateShape, layouts: LayoutContext) -> pa.DataType | None:
    """Arrow type of the payload of a state; None of timers."""
    return None if shape.kind == StateKind.TIMER else column_type(derive_layout(shape.payload, layouts))


def choose_row_columns(
    shape: StateShape, operator: Operator, layouts: LayoutContext, lost: Iterable[str] = ()
) -> RowColumns:
    """The digested columns of a state of an operator; rows are identified by the bytes of their keys."""
    present = ["key_group", "key_bytes"]
    present += ["list_index"] if shape.kind == StateKind.LIST else []
    present += [TTL_COLUMN] if shape.ttl else []
    kind = find_payload_type(shape, layouts)
    return choose_columns(shape, kind, present, operator.max_parallelism, lost)


def choose_old(operator: Operator, back: Return, layouts: LayoutContext) -> RowColumns:
    """The digested columns of an old state of an operator, for comparison with the downgraded rows."""
    return replace(choose_row_columns(back.shape, operator, layouts, back.lost), times=False)


def share_digests(
    columns: RowColumns, others: RowColumns, carried: Iterable[tuple[str, str]], *, whole: bool
) -> tuple[RowColumns, dict[str, str]]:
    """The columns that remain to be digested where other rows share some values.

    Args:
        columns: wanted columns of the rows.
        others: digested columns of the other rows.
        carried: fields of the rows, each with the field of the others that has its values.
        whole: the payloads are the same.

    Returns:
        (remaining columns, names of digests with their names among the others).
    """
    if (columns.keys, columns.groups) != (others.keys, others.groups):
        # Digests of values depend on the identifying columns.
        return columns, {}
    fields = columns.fields if columns.fields is not None else (VALUES,)
    pairs = zip(fields, fields, strict=True) if whole else carried
    shared = {one: other for one, other in pairs if one in fields and not columns.has_losses(one)}
    left = tuple(name for name in fields if name not in shared)
    return (columns if VALUES in left else replace(columns, fields=left)), shared
