"""Writing the rows of one changed state into part files, field by field where that can be, else by way of Spark."""

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
from state_pipelines.spark.fieldwise_rows import FieldwiseRows, split_rows
from state_pipelines.spark.flow_columns import EQUAL_KEYS, NULL_KEY, STORED
from state_pipelines.spark.flows import FlowRunner, StateReader, to_rows
from state_pipelines.spark.opaque_values import compares_bytes, reinterpret_column
from state_pipelines.spark.record_encoding import RecordSpillWriter, Written, encode_fieldwise, encode_frame
from state_pipelines.spark.row_digests import RowDigests, choose_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        parts: one file per task that had rows.
        expected: for the proof; None where none was asked for.
    """

    parts: tuple[StateSpill, ...]
    expected: ExpectedDigests | None


def encode_state(
    reader: StateReader, plan: OperatorPlan, name: str, writer: RecordSpillWriter, *, prove: bool
) -> EncodedState:
    """Write what happens to the states that a new one comes from.

    Args:
        reader: of the old states.
        plan: what happens to the states of the operator.
        name: of the new state.
        writer: writes its rows.
        prove: digest the expected rows.

    Raises:
        StateError: a row cannot be computed or encoded.
    """
    trip = plan_round_trips(plan)[name] if prove else None
    encoder = _Encoder(reader, plan, name, writer, trip)
    fieldwise = find_fieldwise(reader.spark, plan.changed[name], plan.row_layouts)
    return encoder.encode_frame() if fieldwise is None else encoder.encode_fields(fieldwise)


@dataclass(frozen=True)
class _Encoder:
    """Writes one state; `trip` is what will be proven of it, None when nothing will."""

    reader: StateReader
    plan: OperatorPlan
    name: str
    writer: RecordSpillWriter
    trip: RoundTrip | None

    def encode_frame(self) -> EncodedState:
        """By way of Spark."""
        flow, layouts, operator = self.plan.changed[self.name], self.plan.row_layouts, self.reader.operator
        kept = None if self.trip is None else next((each for each in self.trip.returns if each.kept), None)
        runner = FlowRunner(self.reader, layouts, stored=kept is not None)
        frame = to_rows(runner.build(flow), flow.shape)
        if self.trip is None:
            return EncodedState(self._encode(frame, runner).parts, None)
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

    def encode_fields(self, flow: FieldwiseFlow) -> EncodedState:
        """Field by field; for the proof the old ones are digested on the way."""
        spark, operator, layouts = self.reader.spark, self.reader.operator, self.plan.row_layouts
        rows, splits = FieldwiseRows(flow, layouts), split_rows(operator, flow.state)
        if self.trip is None:
            return EncodedState(encode_fieldwise(spark, rows, splits, self.writer).parts, None)
        columns = choose_row_columns(flow.after, operator, layouts)
        old, source, carried = None, "", dict[str, str]()
        # There is one at most, of the only state that is read.
        back = next(iter(self.trip.returns), None)
        if back is not None and compares_bytes(self.plan.changed[self.name], back, self.plan):
            source, whole = back.old, choose_old(operator, back, layouts)
            pairs = ((before, after) for after, before in flow.carried)
            old, carried = share_digests(whole, columns, pairs, whole=flow.whole)
            rows = replace(rows, old=frozenset(old.fields or ()))
        digests = RowDigests(columns, old)
        return _pack(encode_fieldwise(spark, rows, splits, self.writer, digests), columns, source, carried)


def _pack(written: Written, columns: RowColumns, source: str, carried: Mapping[str, str] | None = None) -> EncodedState:
    expected = ExpectedDigests(columns, written.expected, source, written.old, tuple((carried or {}).items()))
    return EncodedState(written.parts, expected)
