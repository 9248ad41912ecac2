"""A snapshot: its operators, and facts about all of it."""

from __future__ import annotations

import hashlib
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from state_pipelines.codecs.serializer_layouts import LayoutContext, collect_subclasses
from state_pipelines.errors import NotFoundError, StateError, Where
from state_pipelines.metadata import (
    CheckpointMetadata,
    CheckpointProperties,
    compute_operator_id,
    find_operator_id,
    list_references,
    write_metadata,
)
from state_pipelines.metadata.properties import SavepointType
from state_pipelines.snapshot.declarations import Declarations
from state_pipelines.snapshot.handle_readers import HandleReader, find_first_bases, find_header_ends
from state_pipelines.snapshot.keyed_files import KeyedFiles
from state_pipelines.snapshot.operator import Operator, measure_handle
from state_pipelines.snapshot.representation import describe_snapshot, make_snapshot_html

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.codecs.kryo.field_lists import FieldLists
    from state_pipelines.serializers.python_types import PythonDeclaration
    from state_pipelines.storage import Location, PathMapping, SnapshotLocation

FIRST_VERSION_OF_FLINK_2 = 5
"""Metadata versions from here on are written by Flink 2, whose generic types are Kryo 5."""


class Snapshot:
    """A checkpoint or savepoint; nothing but `_metadata` is read before a state is asked for.

    Args:
        location: where it lies.
        metadata: content of `_metadata`.
        path_mapping: where directories that absolute handles name are now.
        declarations: facts that the snapshot does not hold.
        copies: by URL of a file, a copy that is read instead.
    """

    def __init__(
        self,
        location: SnapshotLocation,
        metadata: CheckpointMetadata,
        path_mapping: PathMapping,
        declarations: Declarations | None = None,
        copies: Mapping[str, Location] = MappingProxyType({}),
    ) -> None:
        self.location = location
        self.metadata = metadata
        self.path_mapping = path_mapping
        self.declarations = declarations or Declarations()
        self.handles = HandleReader(
            location.directory,
            path_mapping,
            self.declarations.serializers,
            find_header_ends(metadata),
            find_first_bases(metadata),
            copies,
        )
        keys = {find_operator_id(name): key for name, key in self.declarations.key_serializers.items()}
        self.keyed_files = KeyedFiles(metadata, self.handles, keys)

    def __repr__(self) -> str:
        return f"<Snapshot {describe_snapshot(self)}>"

    def _repr_html_(self) -> str:
        """Show the operators, in notebooks."""
        return make_snapshot_html(self)

    def with_declarations(self, declarations: Declarations) -> Snapshot:
        """The same snapshot, opened with other declarations."""
        return Snapshot(self.location, self.metadata, self.path_mapping, declarations, self.handles.copies)

    def with_copies(self, copies: Mapping[str, Location]) -> Snapshot:
        """The same snapshot, some files of which are read from copies, such as local ones.

        Args:
            copies: by URL of a file, the location of its copy.
        """
        return Snapshot(self.location, self.metadata, self.path_mapping, self.declarations, copies)

    @property
    def uids(self) -> tuple[str, ...]:
        """Declared uids."""
        return self.declarations.uids

    @property
    def classes(self) -> FieldLists | None:
        """Declared classes."""
        return self.declarations.classes

    @cached_property
    def connectors(self) -> dict[bytes, str]:
        """Declared connectors by operator id."""
        return {find_operator_id(name): connector for name, connector in self.declarations.connectors.items()}

    @cached_property
    def python_types(self) -> dict[bytes, Mapping[str, PythonDeclaration]]:
        """Declared types of the states of Python functions, by operator id and name of the state in Python."""
        return {find_operator_id(name): types for name, types in self.declarations.python_types.items()}

    @property
    def path(self) -> str:
        """Directory of the snapshot, as a path or URL that `open_snapshot` takes."""
        return str(self.location.directory)

    @property
    def checkpoint_id(self) -> int:
        """Id of the checkpoint or savepoint."""
        return self.metadata.checkpoint_id

    @property
    def kind(self) -> str:
        """`savepoint` or `checkpoint`; `unknown` before Flink 1.16, whose metadata do not say."""
        properties = self.metadata.properties
        if not isinstance(properties, CheckpointProperties):
            return "unknown"
        return "savepoint" if isinstance(properties.checkpoint_type, SavepointType) else "checkpoint"

    @property
    def kryo_version(self) -> int:
        """Major version of Kryo behind generic types: 2 for Flink 1.x, 5 from 2.0."""
        return 5 if self.metadata.version >= FIRST_VERSION_OF_FLINK_2 else 2

    @cached_property
    def fingerprint(self) -> str:
        """Stable identity of the content of `_metadata` (SHA-256, 16 hexadecimal digits)."""
        return hashlib.sha256(write_metadata(self.metadata)).hexdigest()[:16]

    @cached_property
    def file_size(self) -> int:
        """Bytes of state that the handles name, inlined state included."""
        return sum(measure_handle(reference.handle) for reference in list_references(self.metadata))

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The operators, in the order of the file."""
        names = {compute_operator_id(uid): uid for uid in self.uids}
        return tuple(Operator(self, state, names.get(state.operator_id)) for state in self.metadata.operator_states)

    def operator(self, name: str) -> Operator:
        """An operator by uid, 32-digit id, or operator name.

        A uid is hashed, so that it finds its operator in snapshots that store only ids too.

        Raises:
            NotFoundError: there is none; the error lists what there is.
        """
        by_uid = compute_operator_id(name)
        for operator in self.operators:
            if name in (operator.id, operator.metadata.uid) or operator.metadata.operator_id == by_uid:
                uid = operator.uid or (None if name == operator.id else name)
                return Operator(self, operator.metadata, uid)
        named = [operator for operator in self.operators if operator.metadata.name == name]
        if len(named) == 1:
            return named[0]
        known = ", ".join(operator.label for operator in self.operators)
        raise NotFoundError(
            f"the snapshot has no operator {name}",
            where=Where(file=str(self.location.metadata)),
            hint=f"It has {known}" if known else "It has no operators at all",
        )

    @cached_property
    def layout_context(self) -> LayoutContext:
        """What the layouts of data depend on beyond their serializers (see `LayoutContext`)."""
        serializers = [*self.keyed_files.serializers()]
        for operator in self.metadata.operator_states:
            for subtask in operator.subtasks:
                try:
                    source = self.handles.open_operator(subtask.managed_operator_state)
                except StateError:
                    # Whoever asks for that state is told; here it has nothing to give.
                    continue
                infos = () if source is None else (*source.header.lists, *source.header.broadcasts)
                serializers += [serializer for info in infos for _, serializer in info.serializers]
        subclasses = collect_subclasses(serializers)
        return LayoutContext(self.kryo_version, subclasses, self.classes, self.declarations.messages)
