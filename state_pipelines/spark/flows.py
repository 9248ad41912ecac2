"""Data flows of migrations (`operations.migration.flows`) as DataFrames.

Inside, every column but those that SQL may name goes by a prefix, so that no field of a payload can hide it. Keys are
decoded only where SQL names them or where they change.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Protocol

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from state_pipelines.codecs.serializer_layouts import LayoutContext, OpaqueValues
from state_pipelines.errors import MigrationError, at
from state_pipelines.keyed.state_table import TTL_COLUMN, KeyedTable, TableOptions
from state_pipelines.operations.migration import flows
from state_pipelines.operations.migration.flows import Apply, Flow, Read, StateMerge
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.spark.arrow_expressions import make_inputs
from state_pipelines.spark.flow_steps import BYTES, Stage, group_rows, separate_keys
from state_pipelines.spark.splits import choose_whole, split_state
from state_pipelines.spark.tasks import read_splits, translate_failures
from state_pipelines.spark.types import (
    KEYS,
    PAYLOAD,
    STORED,
    VISIBLE,
    conform_value,
    find_layouts,
    fold_constants,
    hidden,
    require_deterministic,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator


class FrameReader(Protocol):
    """Reader of states as frames with the columns that stages know: `PAYLOAD`, and others under `hidden` names."""

    def read(self, name: str, keys: tuple[str, ...], *, stored: bool = False) -> DataFrame:
        """Read the rows of a state; see `StateFrames.read`."""


@dataclass
class StateFrames:
    """Reader of keyed states of one operator as frames; a state that several flows need is read once.

    Attributes:
        operator: the operator; its snapshot need not be published.
        shared: names of the states that several flows need.
        opaque_values: the values (such as Kryo objects) that stay bytes instead of being decoded.
    """

    spark: SparkSession
    operator: Operator
    shared: frozenset[str] = frozenset()
    opaque_values: OpaqueValues = OpaqueValues.ALL
    _frames: dict[tuple[str, tuple[str, ...]], DataFrame] = field(default_factory=dict)

    def read(self, name: str, keys: tuple[str, ...], *, stored: bool = False) -> DataFrame:
        """Read the rows of a state.

        Args:
            name: name of the state.
            keys: columns of the key that are decoded.
            stored: add a copy of the payload, `STORED`, which no stage changes.
        """
        if (name, keys) not in self._frames:
            frame = self._read(name, keys)
            if name in self.shared:
                frame = frame.persist(StorageLevel.DISK_ONLY)
            self._frames[name, keys] = frame
        frame = self._frames[name, keys]
        if stored:
            frame = frame.withColumn(STORED, F.col(PAYLOAD))
        return frame

    def _read(self, name: str, keys: tuple[str, ...]) -> DataFrame:
        state = self.operator.state(name)
        assert isinstance(state, KeyedState)
        names = name_columns(state.layout, keys)
        return self._read_columns(state, TableOptions(columns=tuple(names), key_bytes=True)).withColumnsRenamed(names)

    def _read_columns(self, state: KeyedState, options: TableOptions) -> DataFrame:
        layout = state.derive_layout(replace(self.operator.snapshot.layout_context, opaque_values=self.opaque_values))
        with at(operator=self.operator.label, state=state.name):
            schema = KeyedTable(layout, options).schema
        splits = split_state(state, choose_whole(state, options))
        return read_splits(self.spark, (replace(split, layout=layout) for split in splits), schema)

    def read_lists(self, name: str, keys: tuple[str, ...]) -> DataFrame:
        """Read a list state without TTL, one row per list, in `PAYLOAD`; empty lists have no row.

        A list is one record of the state, so that no rows need be grouped.
        """
        state = self.operator.state(name)
        assert isinstance(state, KeyedState)
        columns = ("key_group", "key_bytes", *keys, "value")
        table = TableOptions(columns=columns, key_bytes=True, flatten=False)
        frame = self._read_columns(state, table)
        frame = frame.withColumnsRenamed({each: PAYLOAD if each == "value" else hidden(each) for each in columns})
        return frame.where(F.size(PAYLOAD) > 0)

    def release(self) -> None:
        """Remove the frames of shared states from disk."""
        for (name, _), frame in self._frames.items():
            if name in self.shared:
                frame.unpersist()
        self._frames.clear()


def name_columns(layout: KeyedLayout, keys: tuple[str, ...]) -> dict[str, str]:
    """Return the columns that are read of a keyed state, each with its name in the frames of flows.

    Args:
        layout: of the records of the state.
        keys: columns of the key that are decoded.
    """
    payload = {StateKind.LIST: "list_value", StateKind.MAP: "map_value"}.get(layout.state_type, "value")
    present = {each for each, _ in layout.key.fields}
    columns = ["key_group", "key_bytes", *(each for each in (*keys, "timestamp") if each in present)]
    columns += ["list_index"] if layout.state_type == StateKind.LIST else []
    columns += [payload] if layout.state_type != StateKind.TIMER else []
    columns += [TTL_COLUMN] if layout.ttl else []
    return {each: PAYLOAD if each == payload else hidden(each) for each in columns}


@dataclass(frozen=True)
class FlowRunner:
    """Builder of DataFrames: each has the rows that a data flow of a migration computes.

    Attributes:
        reader: reader of the states with which flows begin.
        layouts: context from which the layouts of serializers are derived.
        stored: see `StateFrames.read`; only for flows whose rows each come from one old row (`flows.is_aligned`).
        folding: evaluate constant expressions, and constants inside of others, while frames are built.
    """

    reader: FrameReader
    layouts: LayoutContext
    stored: bool = False
    folding: bool = False

    def build(self, flow: Flow, shown: tuple[str, ...] = ()) -> DataFrame:
        """Build the frame of a flow; its payload is in `PAYLOAD`.

        Args:
            flow: the flow.
            shown: columns of the key that are decoded although the flow does not need them.

        Raises:
            MigrationError: Spark refuses an expression, or one is not deterministic although its step does not allow
                that.
        """
        with at(state=flow.shape.name):
            needed = find_keys(flow)
            return self._build(flow, tuple(name for name in KEYS if name in needed or name in shown))

    def _build(self, flow: Flow, keys: tuple[str, ...]) -> DataFrame:
        step = None if isinstance(flow, Read) else flow.step or None
        with at(path=step), translate_failures("the migration cannot be applied"):
            return self._build_node(flow, keys)

    def _build_node(self, flow: Flow, keys: tuple[str, ...]) -> DataFrame:
        match flow:
            case Read(state=state):
                return self.reader.read(state, keys, stored=self.stored)
            case StateMerge():
                return self._merge(flow, keys)
            case Apply(input=Read(state=state, shape=before), stage=flows.Regroup() as stage, shape=shape) if (
                isinstance(self.reader, StateFrames)
                and (before.kind, shape.kind, before.ttl) == (StateKind.LIST, StateKind.VALUE, False)
            ):
                lists = self.reader.read_lists(state, tuple(name for name in keys if name in KEYS[:2]))
                return Stage(lists, before, shape, self.layouts).take_lists(stage)
            case Apply(input=inner, stage=stage, shape=shape):
                frame = self._build(inner, keys)
                if self.folding and _begins_change(flow, inner):
                    # Drop the plan so far: Spark analyses all of it again at every step, which adds up in long chains.
                    frame = make_inputs(frame.sparkSession, frame.schema)
                if inner.shape.kind == StateKind.TIMER and not isinstance(
                    stage, flows.Rekey | flows.Follow | flows.KeepKeys
                ):
                    raise MigrationError("timers have no values that could change")
                beside = self._build_beside(stage)
                return Stage(frame, inner.shape, shape, self.layouts, self.folding, beside).apply(stage)

    def _build_beside(self, stage: flows.Stage) -> tuple[DataFrame, ...]:
        return tuple(self._build(each, KEYS) for each in flows.list_beside(stage))

    def find_unfit_keys(self, flow: Flow, limit: int) -> list[dict[str, Any]]:
        """Find rows whose new key is null or equal to the new key of other rows; show the old and the new key.

        Args:
            flow: one with a change of the key.
            limit: maximum number of rows.
        """
        keys = find_keys(flow)
        found = (each for each in flows.walk_flow(flow) if isinstance(each, Apply))
        change = next(each for each in found if isinstance(each.stage, flows.Rekey))
        assert isinstance(change.stage, flows.Rekey)
        frame = self._build(change.input, keys)
        beside = self._build_beside(change.stage)
        stage = Stage(frame, change.input.shape, change.shape, self.layouts, beside=beside)
        rows = stage.find_unfit_keys(change.stage).limit(limit)
        return [json.loads(row[0]) for row in rows.select(F.to_json(F.struct("*"))).collect()]

    def count_new_keys(self, flow: Flow) -> int | None:
        """Count the distinct new keys of a flow that ends with a change of the key, by hashes of their bytes.

        Bytes do not depend on which keys Spark takes for equal. Return None for other flows, and if sessions merge.
        """
        if not isinstance(flow, Apply) or not isinstance(flow.stage, flows.Rekey) or flow.stage.sessions is not None:
            return None
        stage = Stage(self._build(flow.input, KEYS), flow.input.shape, flow.shape, self.layouts)
        return stage.hash_new_keys(flow.stage).distinct().count()

    def _merge(self, flow: StateMerge, keys: tuple[str, ...]) -> DataFrame:
        frames = [self._build(inner, keys) for _, inner in flow.inputs]
        names = [name for name, _ in flow.inputs]
        if flow.is_beside:
            return self._evaluate_merge(flow, self._join_beside(flow, frames), names)
        common = [name for name in frames[0].columns if all(name in frame.columns for frame in frames)]
        identity = _identity(common)
        others = [name for name in common if name not in identity and name not in (PAYLOAD, hidden(TTL_COLUMN))]
        union: DataFrame | None = None
        for index, frame in enumerate(frames):
            own = frame.select(
                *identity,
                *others,
                F.col(hidden(TTL_COLUMN)) if hidden(TTL_COLUMN) in frame.columns else _no_time(),
                F.lit(index).alias(hidden("from")),
                F.col(PAYLOAD).alias(hidden(f"from_{index}")),
            )
            union = own if union is None else union.unionByName(own, allowMissingColumns=True)
        assert union is not None
        sources = [hidden(f"from_{index}") for index in range(len(frames))]
        found = [F.first(name, ignorenulls=True).alias(name) for name in (*others, *sources)]
        found.append(F.max(hidden(TTL_COLUMN)).alias(hidden(TTL_COLUMN)))
        found.append(F.min(hidden("from")).alias(hidden("from")))
        grouped = group_rows(union, identity, flow.shape, self.layouts, found)
        if flow.own_keys:
            grouped = grouped.where(F.col(hidden("from")) == 0)
        grouped = grouped.drop(hidden("from"))
        return self._evaluate_merge(flow, grouped, names)

    def _join_beside(self, flow: StateMerge, frames: list[DataFrame]) -> DataFrame:
        """Join the entries of a map with the values of other states under the same key and namespace."""
        keys = [hidden(name) for name in KEYS[:2]]
        joined, compared = separate_keys(frames[0], keys, flow.inputs[0][1].shape, self.layouts)
        joined = joined.withColumnRenamed(PAYLOAD, hidden("from_0"))
        for index, ((_, inner), frame) in enumerate(zip(flow.inputs[1:], frames[1:], strict=True), 1):
            other, others = separate_keys(frame, keys, inner.shape, self.layouts)
            renamed = [F.col(name).alias(hidden(f"beside_{index}_{n}")) for n, name in enumerate(others)]
            other = other.select(*renamed, F.col(PAYLOAD).alias(hidden(f"from_{index}")))
            same = [F.col(name).eqNullSafe(F.col(hidden(f"beside_{index}_{n}"))) for n, name in enumerate(compared)]
            joined = joined.join(other, reduce(and_, same), "left")
            joined = joined.drop(*(hidden(f"beside_{index}_{n}") for n in range(len(others))))
        return joined.drop(BYTES)

    def _evaluate_merge(self, flow: StateMerge, grouped: DataFrame, names: list[str]) -> DataFrame:
        """Evaluate the SQL of a merge over the rows of its states, each in a column of its own."""
        sources = [hidden(f"from_{index}") for index in range(len(names))]
        shown = [name for name in VISIBLE if hidden(name) in grouped.columns and name not in names]
        exposed = grouped.select(
            "*",
            *(F.col(hidden(name)).alias(name) for name in shown),
            *(F.col(source).alias(name) for source, name in zip(sources, names, strict=True)),
        )
        if self.folding:
            fold_constants(exposed.select(F.expr(flow.sql)))
        value = exposed.select(F.expr(flow.sql).alias(PAYLOAD))
        require_deterministic(value, allowed=flow.nondeterministic)
        layouts = find_layouts(flow.shape.payload, self.layouts)
        left_out = (*sources, *(() if flow.shape.ttl else (hidden(TTL_COLUMN),)))
        kept = [name for name in grouped.columns if name not in left_out]
        merged = exposed.select(*kept, F.expr(flow.sql).alias(PAYLOAD))
        return merged.select(
            *kept, conform_value(F.col(PAYLOAD), merged.schema[PAYLOAD].dataType, *layouts).alias(PAYLOAD)
        )


def _no_time() -> Column:
    return F.lit(None).cast("timestamp").alias(hidden(TTL_COLUMN))


def _identity(columns: list[str]) -> list[str]:
    """Return the columns that identify a row; for states other than list states."""
    if hidden("key_bytes") in columns:
        return [hidden("key_group"), hidden("key_bytes")]
    return [name for name in map(hidden, ("key_group", *KEYS, "timestamp")) if name in columns]


def _begins_change(flow: Apply, inner: Flow) -> bool:
    """Return whether `flow` is the first step of a change that follows the change of `inner`.

    Each change of the revisions numbers its steps from the start, so the number does not grow there.
    """
    if isinstance(inner, Read) or not (flow.step and inner.step):
        return False
    one, other = (int(each.step.split()[-1]) for each in (flow, inner))
    return one <= other


def find_keys(flow: Flow) -> tuple[str, ...]:
    """Return the columns of the key that a flow needs decoded."""
    stages = [each.stage for each in flows.walk_flow(flow) if isinstance(each, Apply)]
    if any(isinstance(each, flows.Call | flows.Follow) for each in stages) or not flows.keeps_keys(flow):
        return KEYS
    decided = any(isinstance(each, flows.KeepKeys) for each in stages)
    return tuple(name for name in KEYS if flows.names_column(flow, name) or (decided and name == KEYS[0]))


_ROW_COLUMNS = ("key_group", "key_bytes", *KEYS, "timestamp", "list_index", TTL_COLUMN)


def to_rows(frame: DataFrame, shape: StateShape) -> DataFrame:
    """Convert a frame of `FlowRunner` to the columns that `RecordEncoder` takes."""
    present = [name for name in _ROW_COLUMNS if hidden(name) in frame.columns]
    if "key_bytes" in present:
        # Keys that are given as bytes are written as they are; their decoded columns are not needed.
        present = [name for name in present if name not in (*KEYS, "timestamp")]
    columns = [F.col(hidden(name)).alias(name) for name in present]
    if PAYLOAD in frame.columns:
        columns.append(F.col(PAYLOAD).alias(shape.column))
    columns += [F.col(STORED)] if STORED in frame.columns else []
    return frame.select(*columns)
