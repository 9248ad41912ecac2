"""Bootstrapping a savepoint: new states of some operators, alone or on top of a snapshot.

The steps are the same for every engine that gives rows (`RowEngine`): types of the columns, descriptions, plan,
encoding in tasks, merging in tasks, proof, publication.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from state_pipelines.binary.data_views import Writer
from state_pipelines.errors import UsageError, at
from state_pipelines.keyed.digests import add_sums
from state_pipelines.keyed.hashing.value_hashes import make_key_hasher
from state_pipelines.keyed.row_encoding import RecordEncoder
from state_pipelines.metadata import find_operator_id
from state_pipelines.operations.bootstrap.bootstrap_proof import ExpectedRows, prove_bootstrap
from state_pipelines.operations.bootstrap.encoding import ElementEncoding, EncodedElements, EncodedRows, KeyedEncoding
from state_pipelines.operations.bootstrap.kafka_offsets import (
    assign_splits,
    make_coordinator,
    read_offsets,
    require_splits,
)
from state_pipelines.operations.bootstrap.new_states import NewStateKind
from state_pipelines.operations.bootstrap.row_shapes import KEY_GROUP, RowShape
from state_pipelines.operations.bootstrap.state_digests import combine_digests
from state_pipelines.operations.write.publication import FileMode, note_files, plan_copies
from state_pipelines.operations.write.savepoint_plan import EncodedStates, StateName, plan_savepoint
from state_pipelines.operations.write.state_formats import Format
from state_pipelines.serializers.registry import write_snapshot
from state_pipelines.serializers.state_meta_info import write_state_meta_infos
from state_pipelines.storage.snapshot_writer import require_free, require_outside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from state_pipelines.codecs.layout import LayoutContext
    from state_pipelines.connectors.kafka_source import KafkaSplit
    from state_pipelines.operations.bootstrap.new_states import NewOperator, NewState
    from state_pipelines.operations.proofs.proof_reports import ProofReport
    from state_pipelines.operations.write.operator_rewrite import ElementFile
    from state_pipelines.operations.write.savepoint_plan import OperatorWriting, SavepointPlan
    from state_pipelines.operations.write.state_spills import StateSpill
    from state_pipelines.operations.write.transaction import SnapshotTransaction
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.storage import Location


_SHOWN_NAME = 80
"""Characters of a name that is too long, in its error."""


class RowEngine(Protocol):
    """Gives the rows of new states, and runs the tasks that encode them."""

    @property
    def from_source(self) -> Callable[[pa.Array, pa.DataType], pa.Array] | None:
        """See `RowShape`."""

    def find_schema(self, state: NewState) -> pa.Schema:
        """Types of the columns of the rows of a state, after its `columns`.

        Raises:
            UsageError: there are no such rows or columns.
        """

    def read_rows(self, state: NewState) -> pa.Table:
        """All rows of a small state."""

    def encode_keyed(self, states: Sequence[tuple[NewState, KeyedEncoding]]) -> list[tuple[int, list[EncodedRows]]]:
        """Encode the rows of keyed states in tasks.

        Returns:
            For each state the number of rows, which the source counts itself, and what each task has encoded.
        """

    def encode_elements(self, state: NewState, encoding: ElementEncoding) -> tuple[int, list[EncodedElements]]:
        """Encode the rows of a list or broadcast state in tasks; the result is that of `encode_keyed`."""


@dataclass(frozen=True)
class BootstrapResult:
    """Result of a bootstrap.

    Attributes:
        path: the new savepoint.
        snapshot: the new savepoint, opened.
        entries: of each new state, by operator and name.
        bytes: of keys and values of the new keyed states.
        proof: comparison of the new files with the rows; None when it was not asked for.
        seconds: wall time.
        notes: what users should know.
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
        operators: as users describe them.
        plan: of the savepoint.
        engine: gives the rows.
        target: directory of the new savepoint.
        prove: whether the result is read back before it is published.
        files: what happens to the files of the base.
        schemas: types of the rows of each state.
        offsets: splits of Kafka, by uid of the source.
        accessed: time of the last access of values with TTL whose rows have none, in milliseconds since 1970.
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
            transaction: of the new savepoint, entered; its tasks run where it says.

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
        """Facts about the result that users should know."""
        notes = []
        if self.plan.format is Format.HEAP:
            notes.append("the native format restores with state.backend.type: hashmap and Flink 1.15 or newer only")
        if self.plan.format is Format.ROCKSDB:
            notes.append("the native format restores with state.backend.type: rocksdb and Flink 1.15 or newer only")
        file_note = note_files(self.files) if self.plan.base is not None else None
        return (*notes, *([file_note] if file_note else []))

    def check_types(self) -> None:
        """Refuse columns whose types do not fit their serializers, keys without a known key group, and idle sources.

        Raises:
            UsageError: a column is missing, or a source has more subtasks than partitions.
            ValueRangeError: a type does not fit.
            UnsupportedError: the hash of a class is not known.
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
                # Subtasks differ in the states of the base only.
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
    """Decide what is written, and refuse what can be refused without reading rows.

    Args:
        target: directory of the new savepoint.
        operators: the new states.
        engine: gives the rows.
        base: snapshot that all other state is taken from.
        format: of keyed state.
        files: what happens to the files of the base.
        prove: read the result back before it is published.
        layouts: of the new states (see `make_layouts`); default those of the base, else of Flink 2.x.

    Raises:
        TargetExistsError: there is something at the target.
        UsageError: the descriptions lack something, or contradict the base or each other.
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
        # Refuses files that cannot be linked to the target.
        plan_copies(base, plan.metadata, target, files=files)
    return found


def _find_key(base: Snapshot | None, new: NewOperator) -> Serializer | None:
    """The serializer of the keys of an operator of the base."""
    operator = None if base is None else base.get_operator(find_operator_id(new.uid))
    if operator is None:
        return None
    return next((file.header.key_serializer for _, file in operator.keyed_files), None)
