"""Writing the rows of one changed state: field by field where that can be, else by way of Spark.

The rows go into spills, or, field by field, straight into the new files of the subtasks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import IncompatibleError, MigrationError, Where
from state_pipelines.operations.migration.flows import Apply, Rekey, walk_flow
from state_pipelines.operations.migration.round_trips import RoundTrip, plan_round_trips
from state_pipelines.spark.expected_digests import (
    ExpectedDigests,
    choose_old,
    choose_row_columns,
    find_payload_type,
    share_digests,
)
from state_pipelines.spark.fieldwise import FieldwiseFlow, find_fieldwise
from state_pipelines.spark.fieldwise_rows import FieldwiseRows, derive_row_layout, split_rows
from state_pipelines.spark.flow_columns import EQUAL_KEYS, NULL_KEY, STORED
from state_pipelines.spark.flows import FlowRunner, StateReader, to_rows
from state_pipelines.spark.opaque_values import compares_bytes, reinterpret_column
from state_pipelines.spark.record_encoding import (
    RecordSpillWriter,
    RowsRewrite,
    Written,
    encode_fieldwise,
    encode_frame,
)
from state_pipelines.spark.row_digests import RowDigests, choose_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.operations.migration.flows import Flow
    from state_pipelines.operations.migration.migration_plan import OperatorPlan
    from state_pipelines.operations.migration.round_trips import Return
    from state_pipelines.operations.write.state_spills import StateSpill
    from state_pipelines.spark.row_digests import RowColumns


EXAMPLES = 10
"""Rows that an error shows at most."""


@dataclass(frozen=True)
class EncodedState:
    """Files written for a state.

    Attributes:
        spills: one file per task that had rows.
        expected: for the proof; None where none was asked for.
    """

    spills: tuple[StateSpill, ...]
    expected: ExpectedDigests | None


@dataclass(frozen=True)
class PlannedRewrite:
    """A state whose rows go straight into the new files.

    Attributes:
        source: the old state.
        rewrite: what the tasks do with its records.
        pack: makes the result of what they have done.
    """

    source: str
    rewrite: RowsRewrite
    pack: Callable[[Written], EncodedState]


def plan_encoding(
    reader: StateReader, plan: OperatorPlan, name: str, writer: RecordSpillWriter, *, prove: bool
) -> StateEncoding:
    """Choose how the rows of a new state are made.

    Args:
        reader: of the old states.
        plan: what happens to the states of the operator.
        name: of the new state.
        writer: writes its rows.
        prove: digest the expected rows.

    Raises:
        MigrationError: Spark refuses an expression.
    """
    trip = plan_round_trips(plan)[name] if prove else None
    fieldwise = find_fieldwise(reader.spark, plan.changed[name], plan.row_layouts)
    return StateEncoding(reader, plan, name, writer, trip, fieldwise)


@dataclass(frozen=True)
class StateEncoding:
    """Writes one state.

    Attributes:
        trip: what will be proven of it, None when nothing will.
        fieldwise: its rows field by field; None where they go by way of Spark.
    """

    reader: StateReader
    plan: OperatorPlan
    name: str
    writer: RecordSpillWriter
    trip: RoundTrip | None
    fieldwise: FieldwiseFlow | None

    def encode(self) -> EncodedState:
        """Write its rows into spills.

        Raises:
            StateError: a row cannot be computed or encoded.
        """
        if self.fieldwise is None:
            return self._encode_frame()
        splits = split_rows(self.reader.operator, self.fieldwise.state)
        rows, digests, pack = self._plan_fields(self.fieldwise)
        return pack(encode_fieldwise(self.reader.spark, rows, splits, self.writer, digests))

    def plan_rewrite(self) -> PlannedRewrite | None:
        """Plan to write its rows straight into the new files; None where they go by way of Spark."""
        if self.fieldwise is None:
            return None
        rows, digests, pack = self._plan_fields(self.fieldwise)
        layout = derive_row_layout(self.reader.operator, self.fieldwise.state)
        rewrite = RowsRewrite(rows, layout, self.writer.encoder, self.writer.operator, digests)
        return PlannedRewrite(self.fieldwise.state, rewrite, pack)

    def _encode_frame(self) -> EncodedState:
        """By way of Spark."""
        flow, layouts, operator = self.plan.changed[self.name], self.plan.row_layouts, self.reader.operator
        kept = None if self.trip is None else next((each for each in self.trip.returns if each.kept), None)
        runner = FlowRunner(self.reader, layouts, stored=kept is not None)
        frame = to_rows(runner.build(flow), flow.shape)
        if self.trip is None:
            return EncodedState(self._encode(frame, runner).spills, None)
        kind = find_payload_type(flow.shape, layouts)
        columns = choose_columns(flow.shape, kind, frame.columns, operator.max_parallelism)
        old = None
        if kept is not None:
            compared = self._compare_layouts(flow, kept)
            old = replace(choose_old(operator, kept, compared), payload=STORED)
            before, after = (derive_layout(kept.shape.payload, each) for each in (layouts, compared))
            frame = frame.withColumn(STORED, reinterpret_column(F.col(STORED), before, after))
        digests = RowDigests(columns, old)
        return _pack(self._encode(frame, runner, digests), columns, "" if kept is None else kept.old)

    def _compare_layouts(self, flow: Flow, back: Return) -> LayoutContext:
        """Layouts by which an old state and what comes back of it are compared."""
        return self.plan.row_layouts if compares_bytes(flow, back, self.plan) else self.plan.context.layouts

    def _encode(self, frame: DataFrame, runner: FlowRunner, digests: RowDigests | None = None) -> Written:
        """Encode a frame; of keys that do not fit there are examples.

        Raises:
            IncompatibleError: new keys are null, or several values get the same one.
        """
        try:
            return encode_frame(frame, self.writer, digests)
        except MigrationError as error:
            flow = self.plan.changed[self.name]
            if not error.what.startswith((NULL_KEY, f"{EQUAL_KEYS} key")):
                raise
            rows = [json.dumps(row, ensure_ascii=False) for row in runner.find_unfit_keys(flow, EXAMPLES)]
            null = error.what == NULL_KEY
            way_out = "let the expression give a key, or leave these entries out (`filter`)"
            hint = way_out if null else "say what happens to them (`on_equal`)"
            step = next(
                each.step for each in walk_flow(flow) if isinstance(each, Apply) and isinstance(each.stage, Rekey)
            )
            raise IncompatibleError(
                f"{NULL_KEY if null else f'{EQUAL_KEYS} key'}: {'; '.join(rows)}",
                where=Where(operator=self.writer.operator, state=self.name, path=step),
                hint=f"{hint[0].upper()}{hint[1:]}",
            ) from None

    def _plan_fields(
        self, flow: FieldwiseFlow
    ) -> tuple[FieldwiseRows, RowDigests | None, Callable[[Written], EncodedState]]:
        """The rows field by field, what is digested on the way for the proof, and what makes the result."""
        operator, layouts = self.reader.operator, self.plan.row_layouts
        rows = FieldwiseRows(flow, layouts)
        if self.trip is None:
            return rows, None, lambda written: EncodedState(written.spills, None)
        columns = choose_row_columns(flow.after, operator, layouts)
        old, source, carried = None, "", dict[str, str]()
        # There is one at most, of the only state that is read.
        back = next(iter(self.trip.returns), None)
        if back is not None and compares_bytes(self.plan.changed[self.name], back, self.plan):
            source, whole = back.old, choose_old(operator, back, layouts)
            pairs = ((before, after) for after, before in flow.carried)
            old, carried = share_digests(whole, columns, pairs, whole=flow.whole)
            rows = replace(rows, old=frozenset(old.fields or ()))
        return rows, RowDigests(columns, old), lambda written: _pack(written, columns, source, carried)


def _pack(written: Written, columns: RowColumns, source: str, carried: Mapping[str, str] | None = None) -> EncodedState:
    expected = ExpectedDigests(columns, written.expected, source, written.old, tuple((carried or {}).items()))
    return EncodedState(written.spills, expected)
