"""What is meant by the rows that are written of a state: digests that are taken while they are written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from state_pipelines.codecs.columns import column_type
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.keyed.tables import TTL_COLUMN
from state_pipelines.snapshot.keyed_state import TIMER
from state_pipelines.spark.row_digests import Digested, RowColumns, choose_columns

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.column_digest import Sums
    from state_pipelines.operations.migration.planning import OperatorPlan
    from state_pipelines.operations.migration.round_trips import Return
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator


@dataclass(frozen=True)
class Meant:
    """What was meant by the rows that were written of a state.

    Attributes:
        columns: what was digested of them.
        digested: their digests.
        old_columns: what was digested of the rows that they came of; None where nothing was.
        old: the digests of those.
        carried: old and new name of fields that have the same values, so that they were digested once.
    """

    columns: RowColumns
    digested: Digested
    old_columns: RowColumns | None
    old: Digested
    carried: tuple[tuple[str, str], ...]

    @cached_property
    def old_sums(self) -> Sums:
        """Digests of the rows that these came of."""
        meant = self.digested.sums
        return {
            group: {old: meant[group][new] for old, new in self.carried} | sums for group, sums in self.old.sums.items()
        }


def find_payload_type(shape: StateShape, layouts: LayoutContext) -> pa.DataType | None:
    """Arrow type of the payload of a state; None of timers."""
    return None if shape.kind == TIMER else column_type(derive_layout(shape.payload, layouts))


def choose_row_columns(
    shape: StateShape, operator: Operator, layouts: LayoutContext, lost: Iterable[str] = ()
) -> RowColumns:
    """What is digested of the rows of a state of an operator, told apart by the bytes of their keys."""
    present = ["key_group", "key_bytes"]
    present += ["list_index"] if shape.kind == "LIST" else []
    present += [TTL_COLUMN] if shape.ttl else []
    kind = find_payload_type(shape, layouts)
    return choose_columns(shape, kind, present, operator.max_parallelism, lost)


def choose_old(operator: Operator, plan: OperatorPlan, back: Return) -> RowColumns:
    """What is digested of an old state of an operator, to be compared with what comes back."""
    layouts = (plan if plan.back is None else plan.back).context.layouts
    return replace(choose_row_columns(plan.shapes[back.old], operator, layouts, back.lost), times=False)


def choose_others(columns: RowColumns, carried: Iterable[str]) -> tuple[str, ...]:
    """The fields but those that are carried over; those of which parts are lost are none of these."""
    whole = {each for each in carried if not any(path.startswith(f"{each}.") for path in columns.lost)}
    return tuple(name for name in columns.fields or () if name not in whole)
