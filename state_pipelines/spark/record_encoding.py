"""Rows encoded as records in the tasks of Spark, for migrations and for `DataFrame.write`.

* `StateEncoding`, `plan_encoding`: the rows of one changed state, written field by field where that can be, else by way
  of Spark. The rows are written into spills. Where each task writes the file of a subtask, rows that are made field by
  field are written straight into the new files of the subtasks (`RowsRewrite`).
* `StateWriter`: `df.write.format("flink-state")`: rows of one state into a new savepoint. Tasks encode their rows in
  any order; the commit merges the spills with the files of the base snapshot and writes `_metadata` last.
* `write_state`: the same with the merging spread over tasks too: for large states.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import IncompatibleError, MigrationError, UsageError, Where, at
from state_pipelines.keyed.canonical import join_sides, replace_values
from state_pipelines.keyed.state_table import KeyedTable, RecordEncoder
from state_pipelines.operations.migration.flows import Apply, Rekey, RoundTrip, plan_round_trips, walk_flow
from state_pipelines.operations.write.keyed_rewrite import make_file_name
from state_pipelines.operations.write.savepoint_plan import (
    EncodedStates,
    OperatorDescription,
    SavepointPlan,
    StateDescription,
    plan_savepoint,
)
from state_pipelines.operations.write.spills import StateSpill, write_state_spill
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.serializers.build import VOID_NAMESPACE
from state_pipelines.serializers.text import parse
from state_pipelines.serializers.tree import StateKind
from state_pipelines.spark.fieldwise import (
    FieldwiseFlow,
    FieldwiseRows,
    derive_row_layout,
    find_fieldwise,
    run_on_rows,
    split_rows,
)
from state_pipelines.spark.flows import FlowRunner, StateFrames, to_rows
from state_pipelines.spark.proof_rows import (
    Digested,
    ExpectedDigests,
    RowDigests,
    WrittenDigest,
    choose_columns,
    choose_old,
    choose_row_columns,
    find_payload_type,
    find_types,
    share_digests,
)
from state_pipelines.spark.splits import WRITE_OPTIONS, check_options, open_with
from state_pipelines.spark.tasks import run_tasks, translate_failures, uses_other_machines
from state_pipelines.spark.types import EQUAL_KEYS, NULL_KEY, STORED, compares_bytes, reinterpret_column
from state_pipelines.storage import Location, join, resolve
from state_pipelines.storage.files import remove_directory
from state_pipelines.storage.snapshot_writer import name_scratch, require_free

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.record_layout import KeyedLayout, KeyedRecords
    from state_pipelines.operations.migration.flows import Flow, OperatorPlan, Return
    from state_pipelines.spark.fieldwise import MigratedRows
    from state_pipelines.spark.proof_rows import RowColumns
    from state_pipelines.spark.splits import KeyedSplit


@dataclass(frozen=True)
class RecordSpillWriter:
    """Writes the rows of one task into one spill.

    Attributes:
        encoder: encoder of the records.
        directory: where spills go.
        operator: label of the operator, for errors.
    """

    encoder: RecordEncoder
    directory: Location
    operator: str

    @property
    def failure(self) -> str:
        """Description of the task for errors."""
        return f"state {self.encoder.state} of operator {self.operator} cannot be written"

    def write(self, batches: Iterator[pa.RecordBatch]) -> StateSpill:
        """Encode batches into a new spill."""
        with at(operator=self.operator, state=self.encoder.state):
            return write_state_spill(self.encoder, batches, join(self.directory, make_file_name()))


@dataclass(frozen=True)
class Written:
    """Spills that tasks have written for a state, with digests of its old and new rows.

    Attributes:
        spills: one file per task that had rows.
        expected: digests of the expected rows.
        old: digests of the old rows that the expected rows result from.
    """

    spills: tuple[StateSpill, ...]
    expected: Digested
    old: Digested


def _pack(spill: StateSpill | None, digest: WrittenDigest) -> Written:
    return Written(() if spill is None else (spill,), *digest.results)


def combine_written(found: Iterable[Written]) -> Written:
    """Combine the results of several tasks."""
    spills: list[StateSpill] = []
    expected, old = Digested(), Digested()
    for each in found:
        spills += each.spills
        expected.add(each.expected)
        old.add(each.old)
    return Written(tuple(spills), expected, old)


def encode_frame(frame: DataFrame, writer: RecordSpillWriter, digests: RowDigests | None = None) -> Written:
    """Encode a DataFrame; one spill per task that has rows.

    Args:
        frame: the rows; a column with the old payload for `digests.old` is not written.
        writer: writes them.
        digests: columns to digest while writing.

    Raises:
        StateError: a row cannot be encoded.
    """
    types = find_types(writer.encoder.layout)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        digest = WrittenDigest(digests)
        taken = digest.take(batches, types)
        first = next(taken, None)
        if first is not None:
            written = _pack(writer.write(chain([first], taken)), digest)
            yield pa.RecordBatch.from_pydict({"written": [pickle.dumps(written)]})

    with translate_failures(writer.failure):
        rows = frame.mapInArrow(work, "written binary").collect()
    return combine_written(pickle.loads(row["written"]) for row in rows)


@dataclass(frozen=True)
class EncodeRows:
    """Task that writes the rows of one split into one spill.

    Attributes:
        writer: writes them.
        digests: columns to digest while writing.
    """

    writer: RecordSpillWriter
    digests: RowDigests | None

    def run(self, rows: Iterator[MigratedRows]) -> Written:
        """Encode the rows, digesting them if asked for."""
        digest = WrittenDigest(self.digests)

        def take() -> Iterator[pa.RecordBatch]:
            for each in rows:
                digest.add(each.stored, each.new)
                yield each.new

        batches = take()
        first = next(batches, None)
        return _pack(None if first is None else self.writer.write(chain([first], batches)), digest)


def encode_fieldwise(
    spark: SparkSession,
    rows: FieldwiseRows,
    splits: Sequence[KeyedSplit],
    writer: RecordSpillWriter,
    digests: RowDigests | None = None,
) -> Written:
    """Encode the rows of a field-wise flow; arguments as of `encode_frame`.

    Raises:
        StateError: a row cannot be computed or encoded.
    """
    task = EncodeRows(writer, digests)
    return combine_written(run_on_rows(spark, rows, splits, task, writer.failure))


@dataclass(frozen=True)
class RowsRewrite:
    """Rewrites the records of a state field by field, without spills.

    Attributes:
        rows: computes the new rows of a field-wise flow.
        layout: layout of the old records.
        encoder: encoder of the new records.
        operator: its label, for errors.
        digests: columns to digest while writing.
    """

    rows: FieldwiseRows
    layout: KeyedLayout
    encoder: RecordEncoder
    operator: str
    digests: RowDigests | None

    def start(self) -> RowsRewriter:
        """Return the rewriter of one task."""
        return RowsRewriter(self)


class RowsRewriter:
    """Rewriter of the records of a state in one task."""

    def __init__(self, rewrite: RowsRewrite) -> None:
        self._rewrite = rewrite
        self._table = KeyedTable(rewrite.layout, rewrite.rows.options)
        self._digest = WrittenDigest(rewrite.digests)
        # A record of a list state has several rows: it is encoded as a whole, instead of replacing its value row by
        # row.
        flow = rewrite.rows.flow
        self._has_lists = StateKind.LIST in (flow.before.kind, flow.after.kind)

    def rewrite(self, records: KeyedRecords, subtask: int) -> Iterator[KeyedRecords]:
        """Rewrite records of the old file.

        Raises:
            StateError: a record cannot be decoded, computed or encoded.
        """
        rewrite = self._rewrite
        with at(operator=rewrite.operator, state=rewrite.rows.flow.state):
            batch = self._table.make_batch(records, subtask)
        if not len(batch):
            return
        with at(operator=rewrite.operator, state=rewrite.encoder.state):
            rows = rewrite.rows.make_rows(batch)
            self._digest.add(rows.stored, rows.new)
            if not self._has_lists:
                new = [replace_values(records, rewrite.encoder.encode_values(rows.new))]
            else:
                encoded = rewrite.encoder.encode([rows.new])
                new = [join_sides(each.key_groups, each.keys, each.values) for each in encoded]
        yield from new

    @property
    def result(self) -> Written:
        """Digests of all rows that were rewritten."""
        return Written((), *self._digest.results)


EXAMPLES = 10
"""Rows that an error shows at most."""


@dataclass(frozen=True)
class EncodedState:
    """Spills that have been written for a new state, and the digests that its proof needs.

    Attributes:
        spills: one file per task that had rows.
        expected: digests for the proof; None without a proof.
    """

    spills: tuple[StateSpill, ...]
    expected: ExpectedDigests | None


@dataclass(frozen=True)
class PlannedRewrite:
    """A state whose rows are written straight into the new files, without spills.

    Attributes:
        source: name of the old state.
        rewrite: rewrites the records of the old state in a task.
        pack: makes the `EncodedState` from the combined results of the tasks.
    """

    source: str
    rewrite: RowsRewrite
    pack: Callable[[Written], EncodedState]


def plan_encoding(
    reader: StateFrames, plan: OperatorPlan, name: str, writer: RecordSpillWriter, *, prove: bool
) -> StateEncoding:
    """Choose whether Arrow computes the rows of a new state field by field, or Spark computes them as a whole.

    Args:
        reader: reader of the old states.
        plan: what happens to the states of the operator.
        name: of the new state.
        writer: writes its rows.
        prove: digest the expected rows while they are written.

    Raises:
        MigrationError: Spark refuses an expression.
    """
    trip = plan_round_trips(plan)[name] if prove else None
    fieldwise = find_fieldwise(reader.spark, plan.changed[name], plan.row_layouts)
    return StateEncoding(reader, plan, name, writer, trip, fieldwise)


@dataclass(frozen=True)
class StateEncoding:
    """Encoding of the rows of one new state.

    Attributes:
        trip: the round trip that will be proven; None without a proof.
        fieldwise: the flow field by field; None if Spark computes the rows.
    """

    reader: StateFrames
    plan: OperatorPlan
    name: str
    writer: RecordSpillWriter
    trip: RoundTrip | None
    fieldwise: FieldwiseFlow | None

    def encode(self) -> EncodedState:
        """Write the rows of the state into spills.

        Raises:
            StateError: a row cannot be computed or encoded.
        """
        if self.fieldwise is None:
            return self._encode_frame()
        splits = split_rows(self.reader.operator, self.fieldwise.state)
        rows, digests, pack = self._plan_fields(self.fieldwise)
        return pack(encode_fieldwise(self.reader.spark, rows, splits, self.writer, digests))

    def plan_rewrite(self) -> PlannedRewrite | None:
        """Plan to write the rows into the new files without spills; return None if Spark computes the rows."""
        if self.fieldwise is None:
            return None
        rows, digests, pack = self._plan_fields(self.fieldwise)
        layout = derive_row_layout(self.reader.operator, self.fieldwise.state)
        rewrite = RowsRewrite(rows, layout, self.writer.encoder, self.writer.operator, digests)
        return PlannedRewrite(self.fieldwise.state, rewrite, pack)

    def _encode_frame(self) -> EncodedState:
        """Encode rows that Spark computes."""
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
        return _pack_state(self._encode(frame, runner, digests), columns, "" if kept is None else kept.old)

    def _compare_layouts(self, flow: Flow, back: Return) -> LayoutContext:
        """Return the layouts in which an old state is compared with its downgraded rows."""
        return self.plan.row_layouts if compares_bytes(flow, back, self.plan) else self.plan.context.layouts

    def _encode(self, frame: DataFrame, runner: FlowRunner, digests: RowDigests | None = None) -> Written:
        """Encode a frame; an error about new keys lists examples.

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
        """Return the reader that computes rows field by field, the columns to digest, and the maker of the result."""
        operator, layouts = self.reader.operator, self.plan.row_layouts
        rows = FieldwiseRows(flow, layouts)
        if self.trip is None:
            return rows, None, lambda written: EncodedState(written.spills, None)
        columns = choose_row_columns(flow.after, operator, layouts)
        old, source, carried = None, "", dict[str, str]()
        # There is at most one old state, because a field-wise flow reads one state.
        back = next(iter(self.trip.returns), None)
        if back is not None and compares_bytes(self.plan.changed[self.name], back, self.plan):
            source, whole = back.old, choose_old(operator, back, layouts)
            pairs = ((before, after) for after, before in flow.carried)
            old, carried = share_digests(whole, columns, pairs, whole=flow.whole)
            rows = replace(rows, old=frozenset(old.fields or ()))
        return rows, RowDigests(columns, old), lambda written: _pack_state(written, columns, source, carried)


def _pack_state(
    written: Written, columns: RowColumns, source: str, carried: Mapping[str, str] | None = None
) -> EncodedState:
    expected = ExpectedDigests(columns, written.expected, source, written.old, tuple((carried or {}).items()))
    return EncodedState(written.spills, expected)


@dataclass
class SpillMessage(WriterCommitMessage):
    """Message of a task to the driver with its spill; None if it had no rows."""

    spill: StateSpill | None


class StateWriter(DataSourceArrowWriter):
    """Writer of the rows of a DataFrame into a new savepoint, for the format `flink-state`.

    Options: `path` (the new savepoint), `base` (snapshot to take all else from; optional), `operatorId`,
    `stateVarName`, and for what the base does not know `stateType`, `keySerializer`, `valueSerializer`,
    `namespaceSerializer` (in the readable form of `inspect`), `parallelism`, `maxParallelism`; `pathMapping`,
    `allowRoots`, `uids`;
    `scratch`, a directory for temporary files that all tasks reach, by default the one that holds the new savepoint.

    Raises:
        UsageError: an option is missing, or the mode is overwrite.
        TargetExistsError: there is something at the path.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise UsageError("a snapshot is never overwritten", hint='Write to a new path with mode("append")')
        path = options.get("path")
        if not path:
            raise UsageError("the option path is missing", hint="Give the directory of the new savepoint")
        self.target = resolve(path)
        require_free(self.target)
        self.plan = plan_options(options)
        self.scratch = name_scratch(self.target, options.get("scratch") or None)
        self.writer = _make_writer(self.plan, self.scratch)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Encode the rows of one task."""
        batches = (batch for batch in iterator if len(batch))
        first = next(batches, None)
        if first is None:
            return SpillMessage(None)
        return SpillMessage(self.writer.write(chain([first], batches)))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Merge the spills and publish the savepoint, on the driver; `write_state` merges in tasks."""
        found = (each.spill for each in messages if isinstance(each, SpillMessage))
        spills = tuple(spill for spill in found if spill is not None)
        with SnapshotTransaction(self.target) as transaction:
            self.plan.write(transaction, _name_spills(self.plan, spills))
            # The spills are removed before the savepoint is published: if the removal fails, nothing is published, and
            # `abort` tries again to remove them.
            remove_directory(self.scratch)
            transaction.commit()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the spills of the tasks."""
        remove_directory(self.scratch)


def write_state(frame: DataFrame, target: str, **options: str) -> str:
    """Write rows of one state into a new savepoint, encoding and merging in tasks.

    Args:
        frame: columns as `flink-state` reads them; without `key_group` it is computed from the key.
        target: directory of the new savepoint.
        options: as for `df.write.format("flink-state")`, without `path`.

    Returns:
        The target.

    Raises:
        StateError: see `StateWriter`.
    """
    spark = frame.sparkSession
    plan = plan_options(options)
    is_shared, run = uses_other_machines(spark), partial(run_tasks, spark)
    with SnapshotTransaction(resolve(target), run, scratch=options.get("scratch"), is_shared=is_shared) as transaction:
        spills = encode_frame(frame, _make_writer(plan, transaction.scratch)).spills
        plan.write(transaction, _name_spills(plan, spills))
        transaction.commit()
    return target


def plan_options(options: Mapping[str, str]) -> SavepointPlan:
    """Plan the savepoint that the options of the writer describe."""
    check_options(options, WRITE_OPTIONS)
    base = options.get("base")
    snapshot = open_with(base, options) if base else None
    return plan_savepoint(snapshot, [parse_description(options)])


def _make_writer(plan: SavepointPlan, directory: Location) -> RecordSpillWriter:
    """Return the writer for the one state of a plan."""
    (writing,) = plan.operators
    ((name, layout),) = writing.layouts.items()
    return RecordSpillWriter(RecordEncoder(layout, name), directory, writing.description.operator)


def _name_spills(plan: SavepointPlan, spills: tuple[StateSpill, ...]) -> EncodedStates:
    """Assign the spills to the one state of a plan."""
    (writing,) = plan.operators
    (name,) = writing.layouts
    return EncodedStates({(writing.description.operator, name): spills})


def parse_description(options: Mapping[str, str]) -> OperatorDescription:
    """Describe the state that the options of the writer name.

    Raises:
        UsageError: an option is missing or cannot be understood.
    """
    operator, state = options.get("operatorId"), options.get("stateVarName")
    if not operator or not state:
        raise UsageError(f"the option {'stateVarName' if operator else 'operatorId'} is missing")
    key, value, namespace = (
        parse(options[option]) if option in options else None
        for option in ("keySerializer", "valueSerializer", "namespaceSerializer")
    )
    described = StateDescription(state, options.get("stateType"), value, namespace or VOID_NAMESPACE)
    return OperatorDescription(
        operator,
        (described,),
        key=key,
        parallelism=_number(options, "parallelism"),
        max_parallelism=_number(options, "maxParallelism"),
    )


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is not None and not (text.isdecimal() and int(text) > 0):
        raise UsageError(f"the option {name} is {text!r}, not a positive number")
    return int(text) if text is not None else None
