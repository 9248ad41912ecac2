"""Metadata of a snapshot, the declarations of the caller, and the readers of its files."""

from __future__ import annotations

from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from state_pipelines.codecs.serializer_layouts import LayoutContext, collect_subclasses
from state_pipelines.errors import NotFoundError, Where
from state_pipelines.metadata import (
    CheckpointMetadata,
    compute_operator_id,
    find_operator_id,
    format_operator_id,
    list_references,
)
from state_pipelines.metadata.checkpoint import SnapshotKind, find_snapshot_kind
from state_pipelines.snapshot.declarations import Declarations
from state_pipelines.snapshot.handle_readers import (
    HandleReader,
    find_first_bases,
    find_header_ends,
    list_operator_handles,
)
from state_pipelines.snapshot.keyed_files import KeyedFiles
from state_pipelines.snapshot.planned_names import find_planned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.codecs.kryo.classes import FieldLists
    from state_pipelines.metadata import OperatorState
    from state_pipelines.serializers.python_types import PythonDeclaration
    from state_pipelines.storage import Location, PathMapping, SnapshotLocation

FIRST_VERSION_OF_FLINK_2 = 5
"""Metadata versions from here on are written by Flink 2, whose generic types are Kryo 5."""


class SnapshotFiles:
    """Metadata of a snapshot, and the readers of its files; nothing is read before it is asked for.

    Args:
        location: where it lies.
        metadata: content of `_metadata`.
        path_mapping: where directories that absolute handles name are now.
        declarations: information that the snapshot does not hold.
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
            list_operator_handles(metadata),
            copies,
        )
        keys = {find_operator_id(name): key for name, key in self.declarations.key_serializers.items()}
        self.planned = find_planned(self.declarations.plans)
        self.keyed_files = KeyedFiles(metadata, self.handles, keys, self.planned)

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
    def kind(self) -> SnapshotKind:
        """`savepoint` or `checkpoint`; `unknown` before Flink 1.16, whose metadata do not say."""
        return find_snapshot_kind(self.metadata.properties)

    @property
    def kryo_version(self) -> int:
        """Major version of Kryo of generic types: 2 for Flink 1.x, 5 from 2.0."""
        return 5 if self.metadata.version >= FIRST_VERSION_OF_FLINK_2 else 2

    @cached_property
    def file_size(self) -> int:
        """Bytes of state that the handles name, inlined state included."""
        return sum(measure_handle(reference.handle) for reference in list_references(self.metadata))

    @cached_property
    def known_uids(self) -> dict[bytes, str]:
        """Uids by operator id: those that the snapshot stores, declared ones, and those of declared plans."""
        planned = {operator_id: each.uid for operator_id, each in self.planned.items()}
        declared = planned | {compute_operator_id(uid): uid for uid in self.uids}
        stored = {each.operator_id: each.uid for each in self.metadata.operator_states if each.uid}
        return declared | stored

    def find_operator(self, name: str) -> OperatorState:
        """The metadata of an operator by uid, 32-digit id, or operator name.

        A uid is hashed, so that it finds its operator in snapshots that store only ids too.

        Raises:
            NotFoundError: there is none; the error lists what there is.
        """
        by_uid = compute_operator_id(name)
        states = self.metadata.operator_states
        for each in states:
            if name in (format_operator_id(each.operator_id), each.uid) or each.operator_id == by_uid:
                return each
        named = [each for each in states if each.name == name]
        if len(named) == 1:
            return named[0]
        known = ", ".join(
            self.known_uids.get(each.operator_id) or format_operator_id(each.operator_id) for each in states
        )
        raise NotFoundError(
            f"the snapshot has no operator {name}",
            where=Where(file=str(self.location.metadata)),
            hint=f"It has {known}" if known else "It has no operators at all",
        )

    @cached_property
    def layout_context(self) -> LayoutContext:
        """The properties besides serializers that layouts depend on (see `LayoutContext`)."""
        return self._find_layout_context()

    def read_headers(self) -> None:
        """Read the headers of all operators, for `layout_context`; threads may do it for several snapshots."""
        # Up to Python 3.11 `cached_property` has one lock for all snapshots.
        if "layout_context" not in vars(self):
            self.layout_context = self._find_layout_context()

    def _find_layout_context(self) -> LayoutContext:
        serializers = [*self.keyed_files.serializers()]
        subtasks = (subtask for operator in self.metadata.operator_states for subtask in operator.subtasks)
        # Reading state whose header cannot be read raises the error; it has no serializers to add here.
        for unread in self.handles.open_operators(each.managed_operator_state for each in subtasks):
            infos = () if unread is None else (*unread.header.lists, *unread.header.broadcasts)
            serializers += [serializer for info in infos for _, serializer in info.serializers]
        subclasses = collect_subclasses(serializers)
        return LayoutContext(self.kryo_version, subclasses, self.classes, self.declarations.messages)


def measure_handle(handle: object) -> int:
    """Bytes of state that a handle names; nothing is read."""
    data = getattr(handle, "data", None)
    return len(data) if data is not None else int(getattr(handle, "size", 0))
