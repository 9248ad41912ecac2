"""The keyed state backend of one subtask (`AbstractKeyedStateBackend`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.backends.current_key import CurrentKey
from state_pipelines.backends.entry_migration import rewrite_values
from state_pipelines.backends.entry_store import EntryKind, StateSettings
from state_pipelines.backends.key_context import KeyContext
from state_pipelines.backends.live_file import LiveFile
from state_pipelines.backends.schema_changes import Change, check_keys, resolve_keyed
from state_pipelines.backends.state_access import StateTable
from state_pipelines.backends.system_clock import read_clock
from state_pipelines.backends.value_codecs import make_codec
from state_pipelines.errors import UnsupportedError, UsageError, Where, at
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.serializers.merged_subclasses import join_infos
from state_pipelines.serializers.state_meta_info import BackendStateType, as_key_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from state_pipelines.backends.entry_store import Entries, EntryStore
    from state_pipelines.backends.value_codecs import Value
    from state_pipelines.codecs.layout import LayoutContext
    from state_pipelines.keyed.hashing.hash_expressions import HashExpression
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer

MOST_STATES = 32767
"""Ids of states are Java shorts (`FullSnapshotUtil`, `HeapSnapshotStrategy`)."""


@dataclass(frozen=True)
class TimerEntries:
    """Entries of a priority queue of timers.

    Attributes:
        info: the registered state.
        layout: of its records.
        entries: record keys; the values are empty.
    """

    info: StateMetaInfo
    layout: KeyedLayout
    entries: Entries


class KeyedStateBackend:
    """Keyed states of one subtask.

    Args:
        store: where entries live; the backend closes it.
        key_serializer: of the keys of the operator.
        key_groups: range of the subtask.
        max_parallelism: number of key groups of the operator.
        layouts: what layouts depend on.
        hashes: `hashCode` of user classes among the keys, by class name.
        now: epoch milliseconds; the last access of restored values that get TTL.

    Attributes:
        current: the current key, for all states.

    Raises:
        UsageError: values of the key type cannot be keys.
    """

    def __init__(
        self,
        store: EntryStore,
        key_serializer: Serializer,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        layouts: LayoutContext,
        hashes: Mapping[str, HashExpression] | None = None,
        now: Callable[[], int] = read_clock,
    ) -> None:
        self.store = store
        self.key_serializer = key_serializer
        self.key_groups = key_groups
        self.context = RecordContext(max_parallelism, layouts)
        self.key_context = KeyContext(key_serializer, max_parallelism, layouts, hashes)
        self.current = CurrentKey(self.key_context, key_groups)
        self._now = now
        self._states: dict[str, StateMetaInfo] = {}
        self._registered: dict[str, StateTable | TimerEntries] = {}

    @property
    def max_parallelism(self) -> int:
        """Number of key groups of the operator."""
        return self.context.max_parallelism

    @property
    def states(self) -> tuple[StateMetaInfo, ...]:
        """States that are registered or restored, in the order of their ids."""
        return tuple(self._states.values())

    @property
    def current_key(self) -> Value:
        """The current key; None outside of a keyed context."""
        return self.current.value

    def set_current_key(self, key: Value) -> None:
        """Make a key the current one, for all states.

        Raises:
            UsageError: the key is null, or its key group is not in the range of the subtask.
            UnsupportedError: the key is of a class whose hash is not known.
            ValueRangeError: the key does not fit its serializer.
        """
        self.current.set(key)

    def clear_current_key(self) -> None:
        """Leave the keyed context."""
        self.current.clear()

    def register(
        self,
        info: StateMetaInfo,
        typed: StateMetaInfo | None = None,
        *,
        ttl_config: bytes | None = None,
        default_value: Value = None,
    ) -> StateTable:
        """Register a keyed state, new or restored; a second registration of the same gives the same table.

        Args:
            info: the state.
            typed: the same with the types of the values in its byte arrays, of state in PyFlink's layout.
            ttl_config: `StateTtlConfig` as a Java serialization stream, for logs of changes; None without TTL.
            default_value: of keys without one, for logs of changes; None if there is none.

        Raises:
            UsageError: no keyed state, or a state of another type has that name.
            StateMigrationError: the restored state does not fit the new serializers.
            UnsupportedError: a serializer has no layout.
            ValueRangeError: the default value does not fit the serializer.
        """
        info = as_key_value(info)
        if info.backend_type is not BackendStateType.KEY_VALUE:
            raise UsageError(f"{info.backend_type} state is no keyed state of values", where=Where(state=info.name))
        known = self._registered.get(info.name)
        if isinstance(known, StateTable) and known.info == info:
            return known
        with at(state=info.name):
            layout = self._accept(info)
            default = None if default_value is None else make_codec(layout.value).encode(default_value)
            self.store.register(info, layout, StateSettings(ttl_config, default))
            table = StateTable(info, layout if typed is None else self._find_layout(typed), self.current, self.store)
        self._registered[info.name] = table
        return table

    def register_timers(self, info: StateMetaInfo) -> TimerEntries:
        """Register a priority queue of timers, new or restored; as `register`."""
        if info.backend_type is not BackendStateType.PRIORITY_QUEUE:
            raise UsageError(f"{info.backend_type} state is no priority queue", where=Where(state=info.name))
        known = self._registered.get(info.name)
        if isinstance(known, TimerEntries) and known.info == info:
            return known
        with at(state=info.name):
            layout = self._accept(info)
            self.store.register(info, layout)
        timers = TimerEntries(info, layout, self.store.open_entries(info.name, EntryKind.VALUE))
        self._registered[info.name] = timers
        return timers

    def restore(self, files: Sequence[KeyedFile], context: RecordContext | None = None) -> None:
        """Take over the records of the key groups of this subtask; before any state is registered.

        States that are never registered are kept, and are part of the next snapshot.

        Args:
            files: keyed state of any format, of any subtasks of the old operator.
            context: of the old operator; the own one if the Flink release is the same.

        Raises:
            UsageError: a state is registered already, or the number of key groups differs.
            StateMigrationError: the new key serializer is not compatible with that of the old keys.
            StateError: a file cannot be read.
        """
        context = context or self.context
        if context.max_parallelism != self.max_parallelism:
            raise UsageError(
                f"the restored state has {context.max_parallelism} key groups, and the subtask has "
                f"{self.max_parallelism}",
                hint="Rescale the snapshot to the new max parallelism first",
            )
        for file in files:
            self.take_states(file)
            names = [info.name for info in file.header.states]
            for state_id, records in file.scan(range(len(names)), context, self.key_groups):
                self.store.load(names[state_id], records)

    def take_states(self, file: KeyedFile) -> None:
        """Take over the states of a file without its records, for a store that took over its tables.

        Raises:
            UsageError: a state is registered already.
            StateMigrationError: the new key serializer is not compatible with that of the old keys.
            UnsupportedError: a state has another serializer than in a file before.
        """
        if self._registered:
            raise UsageError("state is restored before any state is registered")
        with at(file=file.name):
            check_keys(file.header.key_serializer, self.key_serializer)
        for info in file.header.states:
            self._note(info, file.name)

    def as_file(self, *, compressed: bool = False) -> LiveFile:
        """All records as a keyed file; `compressed` is what its header says for the formats that compress."""
        header = KeyedHeader(compressed=compressed, key_serializer=self.key_serializer, states=self.states)
        return LiveFile(self.store, header, self.key_groups)

    def close(self) -> None:
        """Release the store."""
        self.store.close()

    def _accept(self, info: StateMetaInfo) -> KeyedLayout:
        """Take a state into the list, if it fits what is there under its name."""
        known = self._states.get(info.name)
        layout = self._find_layout(info)
        if known is not None and resolve_keyed(known, info, is_heap=self.store.is_heap) is Change.REWRITE:
            if info.name in self._registered:
                raise UsageError("the state is registered with another serializer already")
            old = known, self._find_layout(known)
            layouts = self.context.layouts
            rewrite_values(self.store, old, (info, layout), layouts, self.key_groups, self._now)
        if known is None and len(self._states) >= MOST_STATES:
            raise UsageError(
                f"Too many KV-States: {len(self._states) + 1}. Currently at most {MOST_STATES} states are supported"
            )
        self._states[info.name] = info
        return layout

    def _find_layout(self, info: StateMetaInfo) -> KeyedLayout:
        return derive_keyed_layout(info, self.key_serializer, self.max_parallelism, self.context.layouts)

    def _note(self, info: StateMetaInfo, name: str) -> None:
        joined = join_infos(self._states.get(info.name, info), info)
        if joined is None:
            raise UnsupportedError(
                "subtasks of the snapshot have different serializers for the state",
                where=Where(file=name, state=info.name),
                hint="Let every subtask write the state once with the new job and take a savepoint then",
            )
        self._states[info.name] = joined
