"""`df.write.format("flink-state")`: rows of one state into a new savepoint.

Tasks encode their rows in any order; the commit merges the spills with the files of the base snapshot
and writes `_metadata` last. `write_state` does the same with the merging spread over tasks too: for large states.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from state_pipelines.errors import UsageError
from state_pipelines.keyed.row_encoding import RecordEncoder
from state_pipelines.operations.write.savepoint_plan import (
    EncodedStates,
    OperatorDescription,
    SavepointPlan,
    StateDescription,
    plan_savepoint,
)
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.serializers.build import VOID_NAMESPACE
from state_pipelines.serializers.text import parse
from state_pipelines.spark.record_encoding import RecordSpillWriter, encode_frame
from state_pipelines.spark.splits import WRITE_OPTIONS, check_options, open_with
from state_pipelines.spark.tasks import run_tasks, uses_other_machines
from state_pipelines.storage import resolve
from state_pipelines.storage.files import remove_directory
from state_pipelines.storage.snapshot_writer import name_scratch, require_free

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from state_pipelines.operations.write.spills import StateSpill
    from state_pipelines.storage import Location


@dataclass
class SpillMessage(WriterCommitMessage):
    """Spills of a task; none without rows."""

    spill: StateSpill | None


class StateWriter(DataSourceArrowWriter):
    """Writes the rows of a DataFrame.

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
        """Merge and publish, on the driver; see `write_state` for doing that in tasks."""
        found = (each.spill for each in messages if isinstance(each, SpillMessage))
        spills = tuple(spill for spill in found if spill is not None)
        with SnapshotTransaction(self.target) as transaction:
            self.plan.write(transaction, _name_spills(self.plan, spills))
            # Before the savepoint is published, so that a failed commit has published nothing; `abort` tries again.
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
    """The plan that writer options ask for."""
    check_options(options, WRITE_OPTIONS)
    base = options.get("base")
    snapshot = open_with(base, options) if base else None
    return plan_savepoint(snapshot, [parse_description(options)])


def _make_writer(plan: SavepointPlan, directory: Location) -> RecordSpillWriter:
    """The writer of the one state of a plan."""
    (writing,) = plan.operators
    ((name, layout),) = writing.layouts.items()
    return RecordSpillWriter(RecordEncoder(layout, name), directory, writing.description.operator)


def _name_spills(plan: SavepointPlan, spills: tuple[StateSpill, ...]) -> EncodedStates:
    """The parts of the one state of a plan."""
    (writing,) = plan.operators
    (name,) = writing.layouts
    return EncodedStates({(writing.description.operator, name): spills})


def parse_description(options: Mapping[str, str]) -> OperatorDescription:
    """The state that writer options describe.

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
