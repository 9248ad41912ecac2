"""The files of keyed state of a snapshot, opened: managed state of every format, and timers in raw keyed state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from state_pipelines.codecs.columns import explain
from state_pipelines.errors import StateError, UnsupportedError, at
from state_pipelines.keyed.canonical import CanonicalFile
from state_pipelines.keyed.changelog.reader import (
    ChangelogFile,
    FoundKeySerializer,
    find_key_serializer,
    find_written_serializers,
)
from state_pipelines.keyed.heap import check_first_section
from state_pipelines.keyed.key_groups import key_group_prefix_size
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.keyed.raw_timers import NotTimersError
from state_pipelines.snapshot.file_owners import Owners, check_owner, find_shared_files
from state_pipelines.snapshot.held_key_groups import check_held_key_groups, find_held_key_groups
from state_pipelines.snapshot.planned_names import find_misfits, label_file
from state_pipelines.storage import METADATA_FILE, join

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.metadata import CheckpointMetadata, OperatorState
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot.handle_readers import HandleReader
    from state_pipelines.sql.node_states import PlannedOperator

Files = tuple[tuple[int, "KeyedFile"], ...]
"""(index of the subtask, its file)."""


Failures = Mapping["int | None", StateError]
"""Errors of subtasks whose state cannot be read, by index of the subtask; under None an error of all together."""


@dataclass(frozen=True)
class UnreadState:
    """Raw keyed state of a subtask that stays bytes.

    Attributes:
        reason: why, and what would help.
        is_timers: it is timers, but in a form or of types that are not read; otherwise only its operator knows it.
    """

    reason: str
    is_timers: bool


class KeyedFiles:
    """Opens the keyed state of operators, each once.

    Args:
        metadata: of the snapshot.
        handles: opens handles.
        key_serializers: by operator id, where the snapshot does not say it (changelog before its first
            materialization) and the caller does.
        planned: by operator id, SQL operators of declared plans, which name the columns of rows.
    """

    def __init__(
        self,
        metadata: CheckpointMetadata,
        handles: HandleReader,
        key_serializers: Mapping[bytes, Serializer],
        planned: Mapping[bytes, PlannedOperator] = MappingProxyType({}),
    ) -> None:
        self._planned = planned
        self._metadata = metadata
        self._handles = handles
        self._key_serializers = key_serializers
        self._managed: dict[bytes, tuple[Files, Mapping[int, StateError]]] = {}
        self._complete: dict[bytes, tuple[Files, Failures]] = {}
        self._raw: dict[bytes, tuple[Files, Mapping[int, UnreadState], Mapping[int, StateError]]] = {}
        self._evidence: dict[bytes, FoundKeySerializer] = {}
        self._checked: set[bytes] = set()

    def serializers(self) -> Iterator[Serializer]:
        """Every serializer that the managed keyed state of the snapshot names.

        State that cannot be read is left out; reading its records raises the error.
        """
        # Subtasks mostly share one header (see `parse_header`).
        seen: set[int] = set()
        for operator in self._metadata.operator_states:
            for _, file in self._open_managed(operator)[0]:
                key, states = file.described_states()
                if id(states) in seen:
                    continue
                seen.add(id(states))
                if key is not None:
                    yield key
                for info in states:
                    yield from (serializer for _, serializer in info.serializers)

    def open(self, operator: OperatorState, layouts: LayoutContext) -> Files:
        """The files of an operator: of each subtask its managed state, then timers in its raw keyed state.

        Raises:
            StateError: a handle cannot be read, timers in raw keyed state are damaged, or a key group is held by no
                subtask or by several.
            UnsupportedError: the key serializer of changelog state is not known.
        """
        files, failures = self.survey(operator, layouts)
        for failure in failures.values():
            raise failure
        return files

    def survey(self, operator: OperatorState, layouts: LayoutContext) -> tuple[Files, Failures]:
        """Open the files of an operator; errors of the others are by index of the subtask.

        The error under None is about the key groups of all subtasks.
        """
        if operator.operator_id not in self._complete:
            managed, failures = self._open_managed(operator)
            failed: dict[int | None, StateError] = dict(failures.items())
            try:
                self._check_ranges(operator)
            except StateError as error:
                failed[None] = error
            try:
                managed = self._know_keys(operator, managed, layouts)
            except StateError as error:
                failed |= {index: error for index, file in managed if _lacks_key(file)}
                managed = tuple(each for each in managed if not _lacks_key(each[1]))
            raw, _, raw_failures = self._open_raw(operator, layouts)
            for index, failure in raw_failures.items():
                failed.setdefault(index, failure)
            self._complete[operator.operator_id] = tuple(sorted((*managed, *raw), key=lambda each: each[0])), failed
        return self._complete[operator.operator_id]

    def find_unread(self, operator: OperatorState, layouts: LayoutContext) -> Mapping[int, UnreadState]:
        """By index of the subtask the raw keyed state that is not timers, or timers that are not read.

        Raises:
            StateError: a handle cannot be read, timers are damaged, or a key group is held by several subtasks.
        """
        self._check_ranges(operator)
        _, unread, failures = self._open_raw(operator, layouts)
        for failure in failures.values():
            raise failure
        return unread

    def survey_unread(self, operator: OperatorState, layouts: LayoutContext) -> Mapping[int, UnreadState]:
        """Find unread state as `find_unread` does, without subtasks whose state is damaged (see `survey`)."""
        return self._open_raw(operator, layouts)[1]

    def open_stored(self, operator: OperatorState, layouts: LayoutContext) -> tuple[KeyedFile, ...]:
        """The files of an operator with the ranges that handles store: a database that several subtasks share once.

        Proofs count these, so that what `open` leaves out of a shared database is counted.

        Raises:
            StateError: as for `open`.
        """
        found: dict[object, KeyedFile] = {}
        handles = {each.index: each.managed_keyed_state for each in operator.subtasks}
        for index, file in self.open(operator, layouts):
            handle = handles[index]
            if file.is_database and handle is not None:
                found.setdefault(handle, file.narrow(handle.key_groups))
            else:
                found[id(file)] = file
        return tuple(found.values())

    def find_misfits(self) -> list[str]:
        """Notes about states whose rows are others than a declared plan says."""
        if not self._planned:
            return []
        files = {
            each.operator_id: [file for _, file in self._open_managed(each)[0]]
            for each in self._metadata.operator_states
        }
        return [*find_misfits(self._planned, files)]

    def evidence(self, operator: OperatorState) -> str:
        """The evidence for a key serializer that was found rather than stored; empty when it is stored."""
        found = self._evidence.get(operator.operator_id)
        return found.evidence if found else ""

    def _check_ranges(self, operator: OperatorState) -> None:
        if operator.operator_id not in self._checked:
            metadata = str(join(self._handles.directory, METADATA_FILE))
            for raw in (False, True):
                check_held_key_groups(operator, metadata, raw=raw)
            check_owner(self._shared_files, operator.operator_id)
            self._checked.add(operator.operator_id)

    @cached_property
    def _shared_files(self) -> Owners:
        return find_shared_files(self._metadata)

    def _open_managed(self, operator: OperatorState) -> tuple[Files, Mapping[int, StateError]]:
        if operator.operator_id not in self._managed:
            self._open_all_managed()
        return self._managed[operator.operator_id]

    def _open_all_managed(self) -> None:
        """Open the managed state of all operators, on which the layouts of each depend, many files at a time."""
        operators: dict[bytes, OperatorState] = {}
        for each in self._metadata.operator_states:
            operators.setdefault(each.operator_id, each)
        opened = iter(
            self._handles.open_side_by_side(
                (subtask.managed_keyed_state, self._key_serializers.get(operator_id))
                for operator_id, operator in operators.items()
                for subtask in operator.subtasks
            )
        )
        for operator_id, operator in operators.items():
            held = find_held_key_groups(operator)
            files: list[tuple[int, KeyedFile]] = []
            failures: dict[int, StateError] = {}
            for subtask in operator.subtasks:
                file = next(opened)
                if file is not None and not isinstance(file, StateError):
                    try:
                        _check_first_sections(file, operator.max_parallelism)
                    except StateError as error:
                        file = error
                if isinstance(file, StateError):
                    failures[subtask.index] = file
                elif file is not None:
                    file = label_file(file, self._planned.get(operator_id))
                    files.append((subtask.index, file.narrow(held[subtask.index]) if subtask.index in held else file))
            self._managed[operator_id] = tuple(files), failures

    def _open_raw(
        self, operator: OperatorState, layouts: LayoutContext
    ) -> tuple[Files, Mapping[int, UnreadState], Mapping[int, StateError]]:
        if operator.operator_id not in self._raw:
            files, unread, failures = [], {}, {}
            opened = self._handles.open_all_raw_keyed([each.raw_keyed_state for each in operator.subtasks], layouts)
            for subtask, file in zip(operator.subtasks, opened, strict=True):
                if isinstance(file, UnsupportedError):
                    unread[subtask.index] = UnreadState(explain(file), not isinstance(file, NotTimersError))
                elif isinstance(file, StateError):
                    failures[subtask.index] = file
                elif file is not None:
                    files.append((subtask.index, label_file(file, self._planned.get(operator.operator_id))))
            self._raw[operator.operator_id] = tuple(files), unread, failures
        return self._raw[operator.operator_id]

    def _know_keys(self, operator: OperatorState, files: Files, layouts: LayoutContext) -> Files:
        unknown = [file for _, file in files if _lacks_key(file)]
        if not unknown:
            return files
        logs = [log for _, file in files for log in file.change_logs()]
        context = RecordContext(operator.max_parallelism, layouts)
        with at(file=unknown[0].name):
            found = find_key_serializer(logs, context, self._candidates)
        self._evidence[operator.operator_id] = found
        return tuple((index, file.with_key_serializer(found.serializer)) for index, file in files)

    @cached_property
    def _candidates(self) -> tuple[Serializer, ...]:
        """Key serializers that operators of the snapshot name."""
        found: dict[Serializer, None] = {}
        for operator in self._metadata.operator_states:
            files, _ = self._open_managed(operator)
            logs = [log for _, file in files for log in file.change_logs()]
            found.update((serializer, None) for serializer, _ in find_written_serializers(logs))
            found.update((key, None) for _, file in files if (key := file.described_states()[0]) is not None)
        return tuple(found)


def _lacks_key(file: KeyedFile) -> bool:
    return file.described_states()[0] is None


def _check_first_sections(file: KeyedFile, max_parallelism: int) -> None:
    for each in file.bases if isinstance(file, ChangelogFile) else (file,):
        if isinstance(each, CanonicalFile):
            check_first_section(each, key_group_prefix_size(max_parallelism))
