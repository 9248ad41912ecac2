"""The states of an operator on both sides of a proof: how their rows are read, identified and digested."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from state_pipelines.codecs.serializer_layouts import OpaqueValues
from state_pipelines.keyed.digests import KEYS, ROWS
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.operations.proofs import DESCRIPTIONS, KEY_SETS, ROW_COUNTS
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.spark.digest_tasks import digest_back, digest_frame, digest_splits
from state_pipelines.spark.expected_digests import (
    choose_old,
    choose_row_columns,
    find_payload_type,
    share_digests,
)
from state_pipelines.spark.fieldwise import find_fieldwise
from state_pipelines.spark.fieldwise_rows import FieldwiseRows, split_rows
from state_pipelines.spark.flows import FlowRunner, StateReader, to_rows
from state_pipelines.spark.operator_state import (
    OperatorStateReader,
    choose_elements,
    find_state,
    make_encoder,
    to_elements,
)
from state_pipelines.spark.row_digests import NULLS, Digested, choose_columns, find_types

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.digests import Sums
    from state_pipelines.operations.migration.round_trips import Return
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator
    from state_pipelines.spark.expected_digests import ExpectedDigests
    from state_pipelines.spark.row_digests import RowColumns

Way = tuple["Return", "LayoutContext"]
"""The way back to an old state, and the layouts by which its rows are compared."""

Returned = tuple["RowColumns", "Sums"]
"""Digests of downgraded rows."""


@dataclass(frozen=True)
class KeyedStates:
    """Keyed states and timers: compared by key group, rows identified by their keys.

    Attributes:
        before: the old operator.
        after: the new one, read back from the files that were written.
    """

    spark: SparkSession
    before: Operator
    after: Operator
    is_keyed: ClassVar[bool] = True
    unit: ClassVar[str] = "key group"
    column: ClassVar[str] = "key_group"
    nouns: ClassVar[dict[str, str]] = {ROW_COUNTS: "records", KEY_SETS: "keys"}
    descriptions: ClassVar[dict[str, str]] = DESCRIPTIONS

    def make_reader(self, operator: Operator, opaque_values: OpaqueValues = OpaqueValues.ALL) -> StateReader:
        """Return the reader of one side."""
        return StateReader(self.spark, operator, opaque_values=opaque_values)

    def spread(self, name: str, shape: StateShape, sums: Sums) -> Sums:
        """Return what every group must hold of these digests."""
        del name, shape
        return sums

    def choose_old(self, back: Return, layouts: LayoutContext) -> RowColumns:
        """Choose the digested columns of an old state."""
        return choose_old(self.before, back, layouts)

    def digest_old(self, back: Return, columns: RowColumns, layouts: LayoutContext) -> Sums:
        """Digest an old state as stored."""
        splits = split_rows(self.before, back.old, layouts.opaque_values)
        return digest_splits(self.spark, splits, columns).sums

    def digest_new(
        self, name: str, shape: StateShape, expected: ExpectedDigests, layouts: LayoutContext, ways: Sequence[Way]
    ) -> tuple[Digested, list[Returned]]:
        """Digest a new state as stored and as downgraded, in one pass where Arrow computes the downgrade.

        Args:
            name: of the state.
            shape: of its rows.
            expected: what its rows are compared with.
            layouts: of its rows.
            ways: the ways back.
        """
        del shape, layouts
        splits, written = split_rows(self.after, name), None
        found: dict[str, tuple[RowColumns, Digested, dict[str, str]]] = {}
        for back, compared in ways:
            bytewise = compared.opaque_values is OpaqueValues.ALL
            way = find_fieldwise(self.spark, back.way, compared) if bytewise else None
            if way is None:
                continue
            columns = replace(choose_row_columns(back.way.shape, self.before, compared, back.lost), times=False)
            made, shared = share_digests(columns, expected.columns, way.carried, whole=way.whole)
            came = Digested()
            if made.fields != ():
                # Ways back see the keys as bytes; what was written is digested in the same pass, once.
                beside = expected.columns if written is None and "key_bytes" in expected.columns.keys else None
                came, read = digest_back(self.spark, splits, FieldwiseRows(way, compared), made, beside)
                written = read if beside is not None else written
            found[back.old] = columns, came, shared
        if written is None:
            written = digest_splits(self.spark, splits, expected.columns, hashed=True)
        returned: list[Returned] = []
        for back, compared in ways:
            if back.old in found:
                columns, came, shared = found[back.old]
                returned.append((columns, _join(came, written, shared)))
            else:
                returned.append(self._digest_returned(back, compared))
        return written, returned

    def _digest_returned(self, back: Return, layouts: LayoutContext) -> Returned:
        shape = back.way.shape
        assert shape.key is not None
        frame = to_rows(FlowRunner(self.make_reader(self.after, layouts.opaque_values), layouts).build(back.way), shape)
        kind, groups = find_payload_type(shape, layouts), self.before.max_parallelism
        columns = replace(choose_columns(shape, kind, frame.columns, groups, back.lost), times=False)
        types = find_types(derive_keyed_layout(shape.info, shape.key, groups, layouts))
        return columns, digest_frame(frame, types, columns).sums


def _join(came: Digested, written: Digested, shared: dict[str, str]) -> Sums:
    """Digests of what comes back; those of values that stay are taken from what was written."""
    if not shared:
        return came.sums
    same = {ROWS: ROWS, KEYS: KEYS, NULLS: NULLS} | shared
    return {
        group: {name: sums[other] for name, other in same.items()} | came.sums.get(group, {})
        for group, sums in written.sums.items()
    }


@dataclass(frozen=True)
class OperatorStates:
    """List and broadcast states: compared by subtask; see `KeyedStates` for attributes and methods."""

    spark: SparkSession
    before: Operator
    after: Operator
    is_keyed: ClassVar[bool] = False
    unit: ClassVar[str] = "subtask"
    column: ClassVar[str] = "subtask"
    nouns: ClassVar[dict[str, str]] = {ROW_COUNTS: "elements", KEY_SETS: "indices and keys"}
    descriptions: ClassVar[dict[str, str]] = DESCRIPTIONS | {
        ROW_COUNTS: "every subtask has as many elements as before",
        KEY_SETS: "elements keep their index in the list of their subtask, entries of broadcast state their keys",
    }

    def make_reader(self, operator: Operator, opaque_values: OpaqueValues = OpaqueValues.ALL) -> OperatorStateReader:
        """Return the reader of one side, of all copies of broadcast state."""
        return OperatorStateReader(self.spark, operator, all_copies=True, opaque_values=opaque_values)

    def spread(self, name: str, shape: StateShape, sums: Sums) -> Sums:
        """Return what every group must hold: of broadcast state one copy was migrated, and every subtask gets it."""
        if shape.kind != StateKind.BROADCAST:
            return sums
        (copy,) = sums.values() or [None]
        return {each.subtask: copy for each in find_state(self.after, name).subtask_states} if copy else {}

    def choose_old(self, back: Return, layouts: LayoutContext) -> RowColumns:
        """Choose the digested columns of an old state."""
        return choose_elements(make_encoder(self.before, back.shape, layouts), back.lost)

    def digest_old(self, back: Return, columns: RowColumns, layouts: LayoutContext) -> Sums:
        """Digest an old state, of broadcast state the first copy."""
        reader = OperatorStateReader(self.spark, self.before, opaque_values=layouts.opaque_values)
        return self._digest(reader.read(back.old, ()), back.shape, layouts, columns).sums

    def digest_new(
        self, name: str, shape: StateShape, expected: ExpectedDigests, layouts: LayoutContext, ways: Sequence[Way]
    ) -> tuple[Digested, list[Returned]]:
        """Digest a new state as stored and as downgraded."""
        written = self._digest(self.make_reader(self.after).read(name, ()), shape, layouts, expected.columns)
        returned: list[Returned] = []
        for back, compared in ways:
            frame = FlowRunner(self.make_reader(self.after, compared.opaque_values), compared).build(back.way)
            columns = choose_elements(make_encoder(self.before, back.way.shape, compared), back.lost)
            returned.append((columns, self._digest(frame, back.way.shape, compared, columns).sums))
        return written, returned

    def _digest(self, frame: DataFrame, shape: StateShape, layouts: LayoutContext, columns: RowColumns) -> Digested:
        types = make_encoder(self.before, shape, layouts).types
        return digest_frame(to_elements(frame, shape), types, columns)
