"""Migration of list and broadcast state: the flows of `flows`, over the elements of subtasks instead of keys.

A task reads one subtask's file. Broadcast state is read from one subtask, once all copies are found to be equal, and
every subtask gets the result.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from state_pipelines.codecs.serializer_layouts import OpaqueValues, derive_layout
from state_pipelines.errors import UnsupportedError, at
from state_pipelines.keyed.state_table import TTL_COLUMN, TableOptions
from state_pipelines.operations.migration.flows import Read, find_reads, plan_round_trips
from state_pipelines.operations.migration.migration_planner import describe_copied
from state_pipelines.operations.migration.shapes import find_shapes
from state_pipelines.operations.write.keyed_rewrite import make_file_name
from state_pipelines.operations.write.operator_rewrite import (
    BroadcastCopy,
    ElementEncoder,
    ElementFile,
    OperatorRewrite,
    require_equal_copies,
    write_elements,
)
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot.operator_state import NonKeyedState, NonKeyedSubtaskState, OperatorBroadcastState
from state_pipelines.spark.flows import FlowRunner, StateFrames
from state_pipelines.spark.proof_rows import (
    Digested,
    ExpectedDigests,
    RowColumns,
    RowDigests,
    WrittenDigest,
    choose_payload,
    combine,
)
from state_pipelines.spark.splits import NonKeyedSplit
from state_pipelines.spark.tasks import read_splits, run_tasks, translate_failures
from state_pipelines.spark.types import KEYS, PAYLOAD, STORED, compares_bytes, hidden, reinterpret_column
from state_pipelines.storage import Location, join

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.metadata.handles import OperatorStreamStateHandle
    from state_pipelines.operations.migration.flows import Flow, OperatorPlan, RoundTrip
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.operatorstate import UnreadOperatorState
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.snapshot import Operator

SUBTASK = hidden("subtask")


@dataclass(frozen=True)
class OperatorStateReader:
    """Reader of list and broadcast states of one operator as frames; see `flows.FrameReader`.

    The columns, under `hidden` names, are `subtask`, `list_index` or `map_key`, and the payload.

    Attributes:
        operator: the operator; its snapshot need not be published.
        all_copies: read every subtask's copy of broadcast state, not only the first.
        opaque_values: the values that are passed on as their bytes.
    """

    spark: SparkSession
    operator: Operator
    all_copies: bool = False
    opaque_values: OpaqueValues = OpaqueValues.ALL

    def read(self, name: str, keys: tuple[str, ...], *, stored: bool = False) -> DataFrame:
        """The rows of a state, one task per subtask.

        Args:
            name: of the state.
            keys: ignored; `map_key` is always decoded.
            stored: add a copy of the payload, `STORED`, which no stage changes.

        Raises:
            UnsupportedError: elements of the state cannot be decoded.
        """
        del keys
        state = find_state(self.operator, name)
        broadcast = isinstance(state, OperatorBroadcastState)
        columns = ("subtask", "map_key", "map_value") if broadcast else ("subtask", "list_index", "value")
        with at(operator=self.operator.label, state=name):
            # Which columns there are depends on the opaque fields, and those are only known from the table with all
            # columns.
            whole = state.make_table(TableOptions())
            whole = replace(whole, context=replace(whole.context, opaque_values=self.opaque_values))
            if whole.undecoded:
                raise UnsupportedError(f"the state cannot be migrated: {whole.undecoded}")
            table = replace(whole, options=TableOptions(columns=columns))
            subtask_states = list_copies(state)[:1] if broadcast and not self.all_copies else state.subtask_states
            splits = [NonKeyedSplit((each,), table, (self.operator.label, name)) for each in subtask_states]
            frame = read_splits(self.spark, splits, table.schema)
        frame = frame.withColumnsRenamed({each: hidden(each) for each in columns[:2]} | {columns[2]: PAYLOAD})
        return frame.withColumn(STORED, F.col(PAYLOAD)) if stored else frame


def find_state(operator: Operator, name: str) -> NonKeyedState:
    """Return a list or broadcast state of an operator."""
    found = next(each for each in operator.operator_states if each.name == name)
    assert isinstance(found, NonKeyedState)
    return found


def list_copies(state: NonKeyedState) -> tuple[NonKeyedSubtaskState, ...]:
    """Return the copies of a state: one for each subtask whose handle contains it."""
    return tuple(each for each in state.subtask_states if each.number)


@dataclass
class OperatorStateWork:
    """Migration of the list and broadcast states of one operator.

    Attributes:
        plan: plan of these states.
        prove: digest the rows while they are written, for the proof.
        expected: by new name, digests of the expected rows.
    """

    spark: SparkSession
    operator: Operator
    plan: OperatorPlan
    prove: bool
    expected: dict[str, ExpectedDigests] = field(default_factory=dict)

    def write(self, target: Location, scratch: Location) -> tuple[dict[int, OperatorStreamStateHandle | None], int]:
        """Write the new files.

        Args:
            target: their directory.
            scratch: directory for temporary files.

        Returns:
            (new handles by subtask, number of rewritten elements and entries).

        Raises:
            UsageError: the copies of a broadcast state differ.
            StateError: a state cannot be read or written.
        """
        self._require_equal_copies()
        files = {name: self._encode(flow, scratch) for name, flow in self.plan.changed.items()}
        rewrites = list(self._plan_files(files, target))
        written = run_tasks(self.spark, rewrites, "the new files cannot be written")
        records = sum(each.records for found in files.values() for each in found)
        return {each.subtask: each.handle for each in written}, records

    def _require_equal_copies(self) -> None:
        context = self.operator.snapshot.layout_context
        for name in dict.fromkeys(source for flow in self.plan.changed.values() for source in find_reads(flow)):
            state = find_state(self.operator, name)
            if isinstance(state, OperatorBroadcastState):
                subtask_states = list_copies(state)
                with at(operator=self.operator.label):
                    copies = [BroadcastCopy(subtask_state, context) for subtask_state in subtask_states]
                    digests = run_tasks(self.spark, copies, "the broadcast state cannot be read")
                    require_equal_copies(subtask_states, digests, name)

    def _encode(self, flow: Flow, directory: Location) -> tuple[ElementFile, ...]:
        shape, name, layouts = flow.shape, flow.shape.name, self.plan.row_layouts
        encoder = make_encoder(self.operator, shape, layouts)
        back = next((each for each in self._trips[name].returns if each.kept), None) if self.prove else None
        with at(operator=self.operator.label, state=name):
            reader = OperatorStateReader(self.spark, self.operator)
            frame = FlowRunner(reader, layouts, stored=back is not None).build(flow)
            old = None
            if back is not None:
                compared = layouts if compares_bytes(flow, back, self.plan) else self.plan.context.layouts
                payload_layouts = (derive_layout(back.shape.payload, each) for each in (layouts, compared))
                frame = frame.withColumn(STORED, reinterpret_column(F.col(STORED), *payload_layouts))
                before = make_encoder(self.operator, back.shape, compared)
                old = replace(choose_elements(before, back.lost), payload=STORED)
            digests = RowDigests(choose_elements(encoder), old) if self.prove else None
            writer = _ElementWriter(encoder, directory, self.operator.label, digests)
            files, expected, stored = writer.run(to_elements(frame, shape))
        if digests is not None:
            self.expected[name] = ExpectedDigests(
                digests.expected, expected, "" if back is None else back.old, stored, ()
            )
        return files

    @cached_property
    def _trips(self) -> dict[str, RoundTrip]:
        return plan_round_trips(self.plan)

    def _plan_files(self, files: dict[str, tuple[ElementFile, ...]], target: Location) -> Iterator[OperatorRewrite]:
        """Plan the new file of each subtask in which a state changes."""
        for subtask, unread in self._list_unread():
            header = unread.header
            held = {info.name: info for info in (*header.lists, *header.broadcasts)}
            infos: list[StateMetaInfo] = []
            copied: list[tuple[str, str]] = []
            encoded: list[tuple[str, tuple[ElementFile, ...]]] = []
            for name, flow in self.plan.states.items():
                if all(each not in held for each in find_reads(flow)):
                    continue
                if isinstance(flow, Read):
                    copied.append((name, flow.state))
                    infos.append(describe_copied(flow, held[flow.state], self.plan.shapes[flow.state]))
                else:
                    everywhere = flow.shape.kind == StateKind.BROADCAST
                    encoded.append((name, tuple(each for each in files[name] if everywhere or each.subtask == subtask)))
                    infos.append(flow.shape.info)
            # If a keyed state has the name of an operator state, the plan has only the keyed state; the operator state
            # is copied.
            hidden_by_keyed = [info for name, info in held.items() if name not in self.plan.shapes]
            copied += [(info.name, info.name) for info in hidden_by_keyed]
            infos += hidden_by_keyed
            if encoded or set(infos) != set(held.values()):
                new = replace(header, lists=_choose(infos, lists=True), broadcasts=_choose(infos, lists=False))
                yield OperatorRewrite(
                    subtask, unread, new, tuple(copied), tuple(encoded), join(target, make_file_name())
                )

    def _list_unread(self) -> Iterator[tuple[int, UnreadOperatorState]]:
        if not (self.plan.states or self.plan.dropped):
            return
        for each in self.operator.metadata.subtasks:
            unread = self.operator.snapshot.handles.open_operator(each.managed_operator_state)
            if unread is not None:
                yield each.index, unread


def _choose(infos: list[StateMetaInfo], *, lists: bool) -> tuple[StateMetaInfo, ...]:
    return tuple(info for info in infos if (info.distribution_mode != StateKind.BROADCAST) == lists)


def make_encoder(operator: Operator, shape: StateShape, layouts: LayoutContext) -> ElementEncoder:
    """Make the encoder of the elements or entries of a state."""
    return ElementEncoder(shape.info, layouts, operator.snapshot.layout_context)


def to_elements(frame: DataFrame, shape: StateShape) -> DataFrame:
    """Convert a frame of `FlowRunner` to the columns that `ElementEncoder` takes."""
    column = "map_key" if shape.kind == StateKind.BROADCAST else "list_index"
    columns = {SUBTASK: "subtask", hidden(column): column, PAYLOAD: shape.column}
    stored = [F.col(STORED)] if STORED in frame.columns else []
    return frame.select(*(F.col(name).alias(alias) for name, alias in columns.items()), *stored)


def choose_elements(encoder: ElementEncoder, lost: Iterable[str] = ()) -> RowColumns:
    """Choose the columns of list elements or broadcast entries to digest; for `lost` see `choose_columns`."""
    *keys, payload = encoder.types
    kind = encoder.types[payload]
    return choose_payload(RowColumns(tuple(keys) or ("list_index",), _SUBTASKS, "subtask"), payload, kind, lost)


_SUBTASKS = 1 << 15
"""Number of groups of digests: more than any operator has subtasks."""


@dataclass(frozen=True)
class _ElementWriter:
    """Writer of the migrated list elements or broadcast entries of one task.

    Attributes:
        encoder: encoder of the elements or entries.
        directory: directory for the element files.
        operator: label of the operator, for errors.
        digests: columns to digest while writing.
    """

    encoder: ElementEncoder
    directory: Location
    operator: str
    digests: RowDigests | None

    def run(self, frame: DataFrame) -> tuple[tuple[ElementFile, ...], Digested, Digested]:
        """Write all rows of a frame.

        Returns:
            (files, digests of the expected rows, digests of their origins).

        Raises:
            StateError: a row cannot be encoded.
        """

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pydict({"written": [pickle.dumps(self._write(batches))]})

        with translate_failures(f"state {self.encoder.info.name} of operator {self.operator} cannot be written"):
            rows = frame.mapInArrow(work, "written binary").collect()
        found = [pickle.loads(row["written"]) for row in rows]
        files = tuple(file for names, _, _ in found for file in names)
        return files, combine(new for _, new, _ in found), combine(old for _, _, old in found)

    def _write(self, batches: Iterator[pa.RecordBatch]) -> tuple[list[ElementFile], Digested, Digested]:
        digest = WrittenDigest(self.digests)
        with at(operator=self.operator, state=self.encoder.info.name):
            files = write_elements(self.encoder, digest.take(batches, self.encoder.types), self.directory)
        return files, *digest.results


_COLUMNS = (*KEYS, "subtask", "list_index", TTL_COLUMN)


def read_rows(spark: SparkSession, operator: Operator, state: str) -> DataFrame:
    """Return the rows of a keyed, list or broadcast state; its snapshot need not be published.

    The columns are those that identify rows (`state_key`, `state_namespace`, `map_key`, `list_index`, `subtask`),
    `ttl_last_access`, and the payload: `value`, `list_value` or `map_value`.

    Raises:
        StateError: the state cannot be read.
    """
    shape = find_shapes(operator)[state]
    if shape.is_keyed:
        frame = StateFrames(spark, operator, opaque_values=OpaqueValues.UNDECODABLE).read(state, KEYS)
    else:
        frame = OperatorStateReader(spark, operator, opaque_values=OpaqueValues.UNDECODABLE).read(state, ())
    shown = [F.col(hidden(each)).alias(each) for each in _COLUMNS if hidden(each) in frame.columns]
    payload = [F.col(PAYLOAD).alias(shape.column)] if PAYLOAD in frame.columns else []
    return frame.select(*shown, *payload)
