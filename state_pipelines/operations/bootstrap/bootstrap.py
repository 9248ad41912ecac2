"""Bootstrap of a savepoint: new states of some operators, alone or on top of a snapshot.

* `plan_bootstrap`, `BootstrapPlan`: the steps are the same for every engine that gives rows (`RowEngine`): types of the
  columns, descriptions, plan, encoding in tasks, merging in tasks, proof, publication.
* `read_offsets`, `assign_splits`, `make_coordinator`: offsets of Kafka partitions as the state of a Kafka source:
  splits of its readers, and its enumerator. Source:
  `org.apache.flink.connector.kafka.source.enumerator.KafkaSourceEnumerator` (`getSplitOwner`),
  `KafkaSourceEnumStateSerializer`, `SourceCoordinator.writeCheckpointBytes`.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Protocol

import pyarrow as pa
from pydantic import Field

from state_pipelines.binary.data_views import Writer
from state_pipelines.codecs.logical_values import conform, to_plain
from state_pipelines.connectors.kafka import (
    NO_OFFSET,
    STARTING_WORDS,
    KafkaAssignment,
    KafkaEnumerator,
    KafkaSplit,
    write_kafka_enumerator,
    write_kafka_split,
)
from state_pipelines.connectors.registry import CoordinatorState, write_coordinator, write_versioned_array
from state_pipelines.errors import IncompatibleError, UsageError, ValueRangeError, at
from state_pipelines.keyed.digests import KEYS, ROWS, add_sums
from state_pipelines.keyed.hashing.basic_hashes import hash_strings
from state_pipelines.keyed.hashing.value_hashes import KeyHasher, make_key_hasher
from state_pipelines.keyed.state_table import RecordEncoder
from state_pipelines.metadata import find_operator_id
from state_pipelines.operations.bootstrap.encoding import (
    NULLS,
    ElementEncoding,
    EncodedElements,
    EncodedRows,
    FileDigests,
    KeyedEncoding,
    StateDigests,
    SubtaskDigests,
    combine_digests,
)
from state_pipelines.operations.bootstrap.new_states import (
    KEY_GROUP,
    LIST_INDEX,
    SUBTASK,
    NewStateKind,
    RowShape,
    require_kind,
)
from state_pipelines.operations.models import OperationModel, Option
from state_pipelines.operations.proofs import (
    AFTER,
    EXAMPLES,
    EXPECTED,
    KEY_HASHES,
    KEY_SETS,
    READ_BACK,
    ROW_COUNTS,
    DifferingRecord,
    ProofCheck,
    ProofReport,
    RecordCounts,
)
from state_pipelines.operations.write.keyed_rewrite import Format, NewFormat
from state_pipelines.operations.write.publication import FileMode, note_files, plan_copies
from state_pipelines.operations.write.savepoint_plan import EncodedStates, StateName, plan_savepoint
from state_pipelines.serializers.registry import write_snapshot
from state_pipelines.serializers.state_meta_info import write_state_meta_infos
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot.operator_state import NonKeyedState
from state_pipelines.storage.snapshot_writer import require_free, require_outside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from state_pipelines.codecs.layout import LayoutContext
    from state_pipelines.keyed.digests import Sums
    from state_pipelines.operations.bootstrap.new_states import NewOperator, NewState
    from state_pipelines.operations.local_processes import Runner
    from state_pipelines.operations.write.operator_rewrite import ElementFile
    from state_pipelines.operations.write.savepoint_plan import OperatorWriting, SavepointPlan
    from state_pipelines.operations.write.spills import StateSpill
    from state_pipelines.operations.write.transaction import SnapshotTransaction
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Operator, Snapshot
    from state_pipelines.storage import Location

COORDINATOR_VERSION = 1
"""Version that `SourceCoordinatorSerdeUtils` writes since Flink 1.13."""

ENUMERATOR_VERSION = 1
"""Version of the enumerator state that has only assigned partitions; connectors since Flink 1.14 read it."""


def read_offsets(rows: pa.Table) -> list[KafkaSplit]:
    """Make Kafka splits of a table with the columns `topic`, `partition` and `offset` (of the next record to read).

    Raises:
        UsageError: a column is missing, or there are no rows.
        ValueRangeError: an offset or partition is null, out of range or not a whole number; or a topic is not text.
        IncompatibleError: a partition occurs twice.
    """
    for name in ("topic", "partition", "offset"):
        if name not in rows.schema.names:
            raise UsageError(f"the offsets have no column {name}", hint=f"they have {', '.join(rows.schema.names)}")
    columns = []
    for name, kind in (("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())):
        column = to_plain(rows.column(name).combine_chunks(), name)
        if name == "topic" and not (pa.types.is_string(column.type) or pa.types.is_null(column.type)):
            raise ValueRangeError(f"the column {name} is {column.type}, not text")
        require_kind(column.type, kind, name)
        columns.append(conform(column, kind, name).to_pylist())
    splits: dict[tuple[str, int], KafkaSplit] = {}
    for topic, partition, offset in zip(*columns, strict=True):
        label = f"partition {partition} of topic {topic}"
        if not topic or partition is None or partition < 0:
            raise ValueRangeError(f"there is no {label}", hint="Every row names a topic and a partition from 0 on")
        if offset is None or (offset < 0 and offset not in (-1, -2, -3)):
            words = ", ".join(f"{number} {word}" for number, word in STARTING_WORDS.items() if number != NO_OFFSET)
            raise ValueRangeError(
                f"{offset} is no offset for {label}",
                hint=f"Give the offset of the next record to read, or one of {words}",
            )
        if (topic, partition) in splits:
            raise IncompatibleError(f"there are several offsets for {label}", hint="Take the largest one")
        splits[topic, partition] = KafkaSplit(topic, partition, offset)
    if not splits:
        raise UsageError(
            "there are no offsets", hint="Without any, the source starts as its job says; leave the state out"
        )
    return list(splits.values())


def require_splits(splits: Sequence[KafkaSplit], parallelism: int) -> None:
    """Check that a Kafka source has no more subtasks than partitions.

    Raises:
        UsageError: it has more, so that some subtasks would have nothing to read.
    """
    if parallelism > len(splits):
        known, idle = len(splits), parallelism - len(splits)
        raise UsageError(
            f"the source knows {known} partition{'' if known == 1 else 's'}, so that of its {parallelism} subtasks "
            f"{idle} would have nothing to read, and would hold back the watermark of the job",
            hint=f"Choose at most {known} subtasks, or give the offsets of all partitions: -2 is the earliest record",
        )


def assign_splits(splits: Sequence[KafkaSplit], parallelism: int) -> pa.RecordBatch:
    """Assign splits to the readers of a Kafka source, as `KafkaSourceEnumerator.getSplitOwner` does.

    Returns:
        Rows of the readers' list state with the columns `subtask`, `list_index` and `value` (a serialized split).
    """
    hashes = hash_strings(pa.array([each.topic for each in splits], pa.string())).tolist()
    placed = sorted(
        (((code * 31 & 0x7FFFFFFF) % parallelism + each.partition) % parallelism, each.topic, each.partition, each)
        for code, each in zip(hashes, splits, strict=True)
    )
    return pa.RecordBatch.from_pydict(
        {
            SUBTASK: pa.array([subtask for subtask, *_ in placed], pa.int32()),
            LIST_INDEX: pa.array(range(len(placed)), pa.int64()),
            "value": pa.array([write_versioned_array(write_kafka_split(each)) for *_, each in placed], pa.binary()),
        }
    )


def make_coordinator(splits: Sequence[KafkaSplit]) -> bytes:
    """Serialize the state of a source coordinator that has assigned these splits, so that none is assigned again."""
    enumerator = KafkaEnumerator(ENUMERATOR_VERSION, tuple(KafkaAssignment(each) for each in splits))
    versioned = write_kafka_enumerator(enumerator)
    return write_coordinator(CoordinatorState(0, COORDINATOR_VERSION, versioned))


DESCRIPTIONS = {
    ROW_COUNTS: "every row of the input was encoded, and every key group and subtask has as many entries as rows",
    KEY_SETS: "the keys are those of the rows, none lost and none duplicated",
    KEY_HASHES: "every key is in the key group that its hash gives",
    READ_BACK: "the entries read back are the rows that were given",
}


@dataclass(frozen=True)
class ExpectedRows:
    """Digests and row counts of the rows that the user gives, by (uid of the operator, name of the state).

    Attributes:
        keyed: digests for keyed states and timers.
        elements: digests by subtask, for list and broadcast states; those of a broadcast state are under subtask 0.
        given: (number of rows that Parquet footers or Spark count, number of rows that were encoded or left out as
            empty lists). The proof requires that they are equal.
    """

    keyed: dict[StateName, StateDigests] = field(default_factory=dict)
    elements: dict[StateName, Sums] = field(default_factory=dict)
    given: dict[StateName, tuple[int, int]] = field(default_factory=dict)


def prove_bootstrap(plan: SavepointPlan, snapshot: Snapshot, expected: ExpectedRows, run: Runner) -> ProofReport:
    """Read the new states back and compare them with the given rows.

    The order of elements must be the same in keyed list state, where a list is one value. It is ignored in operator
    list state, since Flink redistributes its elements.

    Args:
        plan: plan of the savepoint.
        snapshot: the staged savepoint.
        expected: digests of the given rows.
        run: runs tasks.

    Raises:
        StateError: a new file cannot be read.
    """
    started = time.monotonic()
    comparison = _Comparison()
    for (_, name), (rows, taken) in expected.given.items():
        comparison.compare_input(name, rows, taken)
    unhashed = misplaced = 0
    labels: dict[str, None] = {}
    for writing in plan.operators:
        operator = snapshot.get_operator(writing.metadata.operator_id)
        assert operator is not None
        labels[writing.description.operator] = None
        for (label, name), found in _read_keyed(plan, writing, operator, run).items():
            comparison.compare(name, "key group", expected.keyed[label, name].sums, found.sums)
            unhashed, misplaced = unhashed + found.unhashed, misplaced + found.misplaced.total()
        for (label, name), sums in _read_elements(plan, writing, operator, run).items():
            wanted = expected.elements[label, name]
            if writing.elements[name].info.distribution_mode == StateKind.BROADCAST and wanted:
                wanted = dict.fromkeys(range(writing.metadata.parallelism), wanted[0])
            comparison.compare(name, "subtask", wanted, sums)
    checks = list(comparison.make_checks())
    hashed = comparison.keyed_rows - unhashed
    if hashed:
        observed = f"{misplaced:,} of {hashed:,} keys are in another key group"
        counts = RecordCounts(hashed, differing=misplaced)
        description = DESCRIPTIONS[KEY_HASHES]
        checks.insert(
            2, ProofCheck(KEY_HASHES, not misplaced, description, "no key in another key group", observed, counts)
        )
    notes = (f"{unhashed:,} keys have no known hash: their key groups are those of the rows",) if unhashed else ()
    return ProofReport(
        ", ".join(labels),
        ", ".join(comparison.states),
        comparison.rows,
        len(comparison.key_groups),
        tuple(checks),
        time.monotonic() - started,
        notes=notes,
    )


def _read_keyed(
    plan: SavepointPlan, writing: OperatorWriting, operator: Operator, run: Runner
) -> dict[StateName, StateDigests]:
    if not writing.layouts:
        return {}
    label = writing.description.operator
    key = next(iter(writing.layouts.values())).key_serializer
    hasher = KeyHasher(key, plan.context, writing.description.hashes)
    tasks = [
        FileDigests(label, file, writing.layouts, hasher)
        for _, file in operator.keyed_files
        if not file.holds_raw_timers
    ]
    found = run(tasks, "the proof cannot read the new state")
    return {(label, name): combine_digests(each[name] for each in found) for name in writing.layouts}


def _read_elements(
    plan: SavepointPlan, writing: OperatorWriting, operator: Operator, run: Runner
) -> dict[StateName, Sums]:
    label, parallelism = writing.description.operator, writing.metadata.parallelism
    states = {each.name: each for each in operator.operator_states if isinstance(each, NonKeyedState)}
    read: dict[StateName, Sums] = {}
    for name in writing.elements:
        tasks = [SubtaskDigests(label, each, plan.context, parallelism) for each in states[name].subtask_states]
        found = run(tasks, "the proof cannot read the new state")
        read[label, name] = {subtask: values for sums in found for subtask, values in sums.items()}
    return read


class _Comparison:
    """Compares digests of the given rows with digests of the entries read back, and makes the checks of a proof."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.rows = self.keyed_rows = 0
        self.key_groups: set[int] = set()
        self._counts: dict[str, RecordCounts] = {name: RecordCounts() for name in (ROW_COUNTS, KEY_SETS, READ_BACK)}
        self._differing: dict[str, list[DifferingRecord]] = {name: [] for name in self._counts}
        self._fields: Counter[str] = Counter()

    def compare(self, state: str, column: str, expected: Sums, found: Sums) -> None:
        """Compare the given rows of one state with the entries read back.

        Args:
            state: name of the state.
            column: what the digests are grouped by: `key group` or `subtask`.
            expected: digests of the given rows.
            found: digests of the entries read back.
        """
        self.states.append(state)
        rows = sum(each[ROWS] for each in found.values())
        self.rows += rows
        if column == "key group":
            self.keyed_rows += rows
            self.key_groups |= found.keys()
        for number in sorted({*expected, *found}):
            one, other = expected.get(number, {}), found.get(number, {})
            count, wanted = other.get(ROWS, 0), one.get(ROWS, 0)
            self._note(ROW_COUNTS, state, column, number, wanted, count, is_same=count == wanted)
            self._note(KEY_SETS, state, column, number, wanted, count, is_same=one.get(KEYS) == other.get(KEYS))
            self._note(READ_BACK, state, column, number, wanted, count, is_same=one == other)
            if one != other:
                self._fields.update(name for name in {*one, *other} if one.get(name) != other.get(name))

    def compare_input(self, state: str, rows: int, taken: int) -> None:
        """Compare the number of rows in the input (`rows`) with that of rows encoded or left out (`taken`)."""
        if rows != taken:
            self._fields[ROWS] += 1
            self._note(ROW_COUNTS, state, "input", "rows", rows, taken, is_same=False)

    def _note(
        self, check: str, state: str, column: str, number: int | str, wanted: int, count: int, *, is_same: bool
    ) -> None:
        missing, unexpected = max(wanted - count, 0), max(count - wanted, 0)
        differing = 0 if is_same else max(1, min(wanted, count)) if not (missing or unexpected) else 0
        self._counts[check] += RecordCounts(count, differing, missing, unexpected, complete=is_same)
        if not is_same and len(self._differing[check]) < EXAMPLES:
            values = {EXPECTED: f"{wanted:,} entries", AFTER: f"{count:,} entries"}
            self._differing[check].append(DifferingRecord(state, {column: number}, values))

    def make_checks(self) -> list[ProofCheck]:
        """Make the checks of the proof; each of them covers all states compared so far."""
        checks = []
        for name, counts in self._counts.items():
            examples = self._differing[name]
            observed = f"{counts.compared:,} entries read back, all as given"
            if examples:
                words = {ROWS: "counts", KEYS: "keys", NULLS: "null values"}
                columns = ", ".join(words.get(each, each) for each in sorted(self._fields))
                first = examples[0]
                (column, number) = next(iter(first.key.items()))
                observed = f"different {columns}, first in {column} {number} of {first.state}"
            description, expected = DESCRIPTIONS[name], "the digests of the given rows"
            checks.append(ProofCheck(name, not examples, description, expected, observed, counts, tuple(examples)))
        return checks


_SHOWN_NAME = 80
"""Characters of a name that an error shows if the name is too long."""


class RowEngine(Protocol):
    """Input of a bootstrap, such as Spark: gives the rows of new states, and runs the tasks that encode them."""

    @property
    def from_source(self) -> Callable[[pa.Array, pa.DataType], pa.Array] | None:
        """Function that converts values which the input has in another type; None without any (see `RowShape`)."""

    def find_schema(self, state: NewState) -> pa.Schema:
        """Return the types of the columns of a state, after the mapping of columns in `NewState.columns`.

        Raises:
            UsageError: there are no rows, or a column is missing.
        """

    def read_rows(self, state: NewState) -> pa.Table:
        """Return all rows of a small state."""

    def encode_keyed(self, states: Sequence[tuple[NewState, KeyedEncoding]]) -> list[tuple[int, list[EncodedRows]]]:
        """Encode the rows of keyed states in tasks.

        Returns:
            For each state: (number of rows, counted independently of the tasks; results of the tasks).
        """

    def encode_elements(self, state: NewState, encoding: ElementEncoding) -> tuple[int, list[EncodedElements]]:
        """Encode the rows of a list or broadcast state in tasks.

        Returns:
            (number of rows, counted independently of the tasks; results of the tasks).
        """


@dataclass(frozen=True)
class BootstrapResult:
    """Result of a bootstrap.

    Attributes:
        path: path of the new savepoint.
        snapshot: the new savepoint, opened.
        entries: number of entries of each new state, by (uid of the operator, name of the state).
        bytes: bytes of keys and values in the new keyed states.
        proof: comparison of the new files with the rows; None if no proof was requested.
        seconds: wall time.
        notes: remarks for the user.
    """

    path: str
    snapshot: Snapshot
    entries: Mapping[tuple[str, str], int]
    bytes: int
    proof: ProofReport | None
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class BootstrapPlan:
    """Plan of a bootstrap; everything that can be refused without reading rows has been checked.

    Attributes:
        operators: the new states, as the user describes them.
        plan: plan of the savepoint.
        engine: gives the rows and runs the tasks.
        target: directory of the new savepoint.
        prove: whether the result is read back before it is published.
        files: copy, link or reference the files of the base.
        schemas: types of the rows of each state.
        offsets: Kafka splits, by uid of the source.
        accessed: time of the last access, in milliseconds since 1970, for values with TTL whose rows do not give it.
    """

    operators: Sequence[NewOperator]
    plan: SavepointPlan
    engine: RowEngine
    target: Location
    prove: bool
    files: FileMode
    schemas: Mapping[StateName, pa.Schema]
    offsets: Mapping[str, Sequence[KafkaSplit]]
    accessed: int

    def run(self, transaction: SnapshotTransaction) -> BootstrapResult:
        """Encode the rows, merge them into files, prove and publish.

        Args:
            transaction: transaction of the new savepoint, already entered; it runs the tasks.

        Raises:
            IncompatibleError: a key occurs twice in a state.
            ProofError: the new files do not hold the rows; nothing is left at the target.
            StateError: rows cannot be read or encoded, or the storage refuses.
        """
        started = time.monotonic()
        spills: dict[StateName, tuple[StateSpill, ...]] = {}
        elements: dict[StateName, tuple[ElementFile, ...]] = {}
        expected = ExpectedRows()
        counts: dict[StateName, int] = {}
        pairs = list(zip(self.operators, self.plan.operators, strict=True))
        wanted = [(new, writing, state) for new, writing in pairs for state in new.keyed]
        encoded = self.engine.encode_keyed(
            [(state, self._encode_keyed(writing, state, transaction.scratch)) for _, writing, state in wanted]
        )
        for (new, _, state), (rows, found) in zip(wanted, encoded, strict=True):
            key = new.uid, state.stored_name
            spills[key] = tuple(spill for each in found for spill in each.spills)
            expected.keyed[key] = combine_digests(each.digests for each in found)
            expected.given[key] = rows, sum(each.rows for each in found)
            counts[key] = sum(spill.records for spill in spills[key])
        for new, writing in pairs:
            for state in new.unkeyed:
                key = new.uid, state.stored_name
                rows, written = self._write_elements(new, writing, state, transaction.scratch)
                elements[key] = tuple(file for task in written for file in task.files)
                expected.elements[key] = {}
                for task in written:
                    add_sums(expected.elements[key], task.sums)
                expected.given[key] = rows, sum(each.rows for each in written)
                counts[key] = sum(file.records for file in elements[key])
        snapshot, digests = self.plan.write(transaction, EncodedStates(spills, elements), self.files)
        proof = None
        if self.prove:
            proof = prove_bootstrap(self.plan, snapshot, expected, transaction.run)
        transaction.commit(proof, hint="Please report this")
        size = sum(each.bytes for each in digests.values())
        return BootstrapResult(
            str(transaction.target), snapshot, counts, size, proof, time.monotonic() - started, self.notes
        )

    def _write_elements(
        self, new: NewOperator, writing: OperatorWriting, state: NewState, directory: Location
    ) -> tuple[int, list[EncodedElements]]:
        encoding = self._encode_elements(writing, state, directory)
        if state.kind == NewStateKind.KAFKA:
            splits = self.offsets[new.uid]
            return len(splits), [encoding.write([assign_splits(splits, encoding.parallelism)])]
        return self.engine.encode_elements(state, encoding)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the user on restrictions of the result."""
        notes = []
        if self.plan.format is Format.HEAP:
            notes.append("the native format restores with state.backend.type: hashmap and Flink 1.15 or newer only")
        if self.plan.format is Format.ROCKSDB:
            notes.append("the native format restores with state.backend.type: rocksdb and Flink 1.15 or newer only")
        file_note = note_files(self.files) if self.plan.base is not None else None
        return (*notes, *([file_note] if file_note else []))

    def check_types(self) -> None:
        """Check that columns fit their serializers, that keys can be hashed, and that sources have enough partitions.

        Raises:
            UsageError: a column is missing, or a Kafka source has more subtasks than partitions.
            ValueRangeError: the type of a column does not fit its serializer.
            UnsupportedError: the hash of a class in the keys is not known, and the rows have no column `key_group`.
        """
        for new, writing in zip(self.operators, self.plan.operators, strict=True):
            for state in new.keyed:
                schema = self.schemas[new.uid, state.stored_name]
                encoding = self._encode_keyed(writing, state, self.target)
                encoding.check_types(schema)
                if KEY_GROUP not in schema.names:
                    with at(operator=new.uid, state=state.name):
                        key = encoding.encoder.layout.key_serializer
                        make_key_hasher(key, self.plan.context, dict(writing.description.hashes))
            for state in new.unkeyed:
                if state.kind == NewStateKind.KAFKA:
                    with at(operator=new.uid, state=state.stored_name):
                        require_splits(self.offsets[new.uid], writing.metadata.parallelism)
                else:
                    encoder = self._encode_elements(writing, state, self.target)
                    encoder.check_types(self.schemas[new.uid, state.stored_name])

    def check_headers(self) -> None:
        """Refuse names and serializers that the headers of the new files cannot hold.

        Raises:
            ValueRangeError: a name, or a text of a serializer, is longer than `DataOutput.writeUTF` takes.
        """
        for writing in self.plan.operators:
            infos = [encoder.info for encoder in writing.elements.values()]
            with at(operator=writing.description.operator):
                # Checking the header of one subtask is enough: the new states are the same in the headers of all
                # subtasks, only the states of the base may differ.
                for _, _, header in writing.files[:1]:
                    write_snapshot(Writer(), header.key_serializer)
                    infos += [info for info in header.states if info.name in writing.layouts]
                for info in infos:
                    with at(state=f"{info.name:.{_SHOWN_NAME}}"):
                        write_state_meta_infos(Writer(), (info,))

    def _encode_keyed(self, writing: OperatorWriting, state: NewState, directory: Location) -> KeyedEncoding:
        layout = writing.layouts[state.stored_name]
        encoder = RecordEncoder(layout, state.stored_name, writing.description.hashes)
        shape = RowShape(layout, self.accessed, self.engine.from_source)
        return KeyedEncoding(writing.description.operator, encoder, shape, directory, self.prove)

    def _encode_elements(self, writing: OperatorWriting, state: NewState, directory: Location) -> ElementEncoding:
        return ElementEncoding(
            writing.description.operator,
            writing.elements[state.stored_name],
            directory,
            writing.metadata.parallelism,
            self.prove,
            None if state.kind == NewStateKind.KAFKA else self.engine.from_source,
        )


class BootstrapRequest(OperationModel):
    """Everything that a bootstrap can be asked for besides its new states."""

    base: Annotated[str | None, Option(value="SNAPSHOT")] = None
    """Path or URL of a snapshot that all other state is taken from; none by default."""

    format: NewFormat = "canonical"
    """Format of keyed state."""

    files: Annotated[FileMode, Field(strict=False)] = FileMode.COPY
    """Copy the files of the base, link them on one local volume, or reference them: the base must stay."""

    flink_version: Annotated[str | None, Option(value="RELEASE")] = None
    """Release that starts from the savepoint, such as 1.20: Kryo writes as its line. By default that of the base."""


def plan_bootstrap(
    target: Location,
    operators: Sequence[NewOperator],
    engine: RowEngine,
    *,
    base: Snapshot | None = None,
    format: Format = Format.CANONICAL,
    files: FileMode = FileMode.COPY,
    prove: bool = True,
    layouts: LayoutContext | None = None,
) -> BootstrapPlan:
    """Plan a bootstrap, and refuse everything that can be refused without reading rows (except Kafka offsets).

    Args:
        target: directory of the new savepoint.
        operators: the new states.
        engine: gives the rows and runs the tasks.
        base: snapshot from which all other state is taken; None for a savepoint with the new states only.
        format: format of keyed state.
        files: copy, link or reference the files of the base.
        prove: read the result back before it is published.
        layouts: context of the layouts of the new states (see `make_layouts`). By default the context of the base is
            used; without a base, one for Flink 2.x.

    Raises:
        TargetExistsError: there is something at the target.
        UsageError: the descriptions are incomplete, or contradict the base or each other.
        ValueRangeError: the type of a column does not fit its serializer.
        UnsupportedError: a serializer has no layout, or the hash of a key is not known.
        IncompatibleError: a Kafka partition has several offsets.
    """
    if not operators:
        raise UsageError("there is nothing to write", hint="Describe at least one operator with a state")
    require_free(target)
    if base is not None:
        require_outside(target, base.location.directory)
    schemas: dict[StateName, pa.Schema] = {}
    offsets: dict[str, list[KafkaSplit]] = {}
    descriptions = []
    for new in operators:
        coordinator = new.coordinator
        for state in new.states:
            with at(operator=new.uid, state=state.name):
                schemas.setdefault((new.uid, state.stored_name), engine.find_schema(state))
                if state.kind == NewStateKind.KAFKA:
                    offsets[new.uid] = read_offsets(engine.read_rows(state))
                    coordinator = make_coordinator(offsets[new.uid])
        types = {
            name: {each.name: each.type for each in schema} for (uid, name), schema in schemas.items() if uid == new.uid
        }
        descriptions.append(new.describe(types, _find_key(base, new), coordinator))
    plan = plan_savepoint(base, descriptions, format, layouts)
    found = BootstrapPlan(operators, plan, engine, target, prove, files, schemas, offsets, int(time.time() * 1000))
    found.check_types()
    found.check_headers()
    if base is not None:
        # The planned copies are not used: this call refuses files of the base that cannot be linked, before anything is
        # written.
        plan_copies(base, plan.metadata, target, files=files)
    return found


def _find_key(base: Snapshot | None, new: NewOperator) -> Serializer | None:
    """Return the serializer of the keys that an operator has in the base; None if it has no keyed state there."""
    operator = None if base is None else base.get_operator(find_operator_id(new.uid))
    if operator is None:
        return None
    return next((file.header.key_serializer for _, file in operator.keyed_files), None)
