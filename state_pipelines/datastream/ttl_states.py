"""Keyed states with TTL: every value, list element and map value has its own time of last access.

Source: `TtlValueState`, `TtlListState`, `TtlMapState`, `TtlReducingState`, `TtlAggregatingState`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_pipelines.datastream.states import MapState, ValueState
from state_pipelines.datastream.table_states import (
    CombinedState,
    TableAggregatingState,
    TableListState,
    TableReducingState,
    TableState,
    convert,
)
from state_pipelines.datastream.ttl import TtlCleaner, TtlRules

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.backends.keyed_backend import KeyedStateBackend
    from state_pipelines.backends.state_access import StateTable
    from state_pipelines.datastream.clocks import Clock
    from state_pipelines.datastream.descriptors import MapStateDescriptor, StateDescriptor
    from state_pipelines.datastream.ttl import Stamped


class TtlState(TableState):
    """A state whose values expire.

    Args:
        descriptor: with a configuration of TTL.
        table: of the backend.
        backend: of the subtask.
        clock: processing time.
    """

    def __init__(
        self, descriptor: StateDescriptor, table: StateTable, backend: KeyedStateBackend, clock: Clock
    ) -> None:
        super().__init__(descriptor, table)
        config = descriptor.ttl_config
        assert config is not None
        self._rules = TtlRules(config, clock)
        self._cleaner = TtlCleaner(table, backend, self._rules, self.prune)
        self._is_cleaned_in_snapshots = config.get_cleanup_strategies().in_full_snapshot()
        strategy = config.get_cleanup_strategies().get_incremental_cleanup_strategy()
        self._clean_size = 0 if strategy is None else strategy.get_cleanup_size()
        self.is_cleaned_by_records = strategy is not None and strategy.run_cleanup_for_every_record()

    def prune(self, namespace: Any) -> list[int]:
        """Remove the value of the current key if it has expired; return the time of last access if it stays."""
        stored = self._table.get(namespace)
        if stored is None:
            return []
        if self._rules.is_expired(stored):
            self._table.remove(namespace)
            return []
        return [stored["last_access"]]

    def clean_some(self) -> None:
        """Look at the next keys of the incremental clean-up."""
        if self._clean_size:
            self._cleaner.clean(self._clean_size)

    def clean_for_snapshot(self) -> None:
        """Remove all expired values, if the state is cleaned up in full snapshots."""
        if self._is_cleaned_in_snapshots:
            self._cleaner.clean_all()

    def clear(self) -> None:
        """Remove what is stored for the current key."""
        self.clean_some()
        super().clear()

    def _read_single(self) -> Stamped | None:
        """Return the only value of the current key, by the rules."""
        self.clean_some()
        namespace = self._namespace
        return self._rules.read(
            self._table.get(namespace),
            lambda stamped: self._table.put(stamped, namespace),
            lambda: self._table.remove(namespace),
        )

    def _find_visible(self, namespace: Any) -> Stamped | None:
        stored: Stamped | None = self._table.get(namespace)
        return stored if stored is not None and self._rules.is_visible(stored) else None


class TtlValueState(TtlState, ValueState[Any]):
    """`ValueState` with TTL; the default value of its descriptor does not count."""

    def value(self) -> Any:
        """Return the value; None if it has expired."""
        stored = self._read_single()
        return None if stored is None else self.descriptor.type_info.from_internal_type(stored["value"])

    def update(self, value: Any) -> None:
        """Set the value; None removes it."""
        self.clean_some()
        if value is None:
            self._table.remove(self._namespace)
            return
        converted = convert(self.descriptor.type_info, value, self.descriptor.name)
        self._table.put(self._rules.stamp(converted), self._namespace)


class TtlListState(TtlState, TableListState):
    """`ListState` with TTL of every element."""

    def get(self) -> Sequence[Any]:
        """Return the elements that have not expired."""
        self.clean_some()
        stored = self._table.get(self._namespace) or []
        alive = [each for each in stored if not self._rules.is_expired(each)]
        if stored and not alive:
            self._table.remove(self._namespace)
        elif alive and self._rules.is_prolonged_by_read:
            self._table.put([self._rules.stamp(each["value"]) for each in alive], self._namespace)
        shown = stored if self._rules.returns_expired else alive
        return self._elements.read([each["value"] for each in shown])

    def add(self, value: Any) -> None:
        """Append an element."""
        self.add_all([value])

    def add_all(self, values: Sequence[Any]) -> None:
        """Append elements."""
        self.clean_some()
        self._table.append(self._stamp_all(values), self._namespace)

    def update(self, values: Sequence[Any]) -> None:
        """Replace all elements."""
        self.clean_some()
        self._table.put(self._stamp_all(values), self._namespace)

    def prune(self, namespace: Any) -> list[int]:
        """Remove the expired elements of the current key; return the times of last access of the others."""
        stored = self._table.get(namespace) or []
        alive = [each for each in stored if not self._rules.is_expired(each)]
        if len(alive) != len(stored):
            self._table.put(alive, namespace)
        return [each["last_access"] for each in alive]

    def _stamp_all(self, values: Sequence[Any]) -> list[Stamped]:
        return [self._rules.stamp(each) for each in self._elements.write(values)]


class TtlMapState(TtlState, MapState[Any, Any]):
    """`MapState` with TTL of every map value."""

    def __init__(
        self, descriptor: MapStateDescriptor, table: StateTable, backend: KeyedStateBackend, clock: Clock
    ) -> None:
        super().__init__(descriptor, table, backend, clock)
        self._key = descriptor.type_info.key_type
        self._value = descriptor.type_info.value_type

    def get(self, key: Any) -> Any:
        """Return the value of a map key; None if it has expired."""
        stored = self._read_entry(key)
        return None if stored is None else self._show(stored)

    def contains(self, key: Any) -> bool:
        """Return whether a map key is there and has not expired."""
        return self._read_entry(key) is not None

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a map key."""
        self.clean_some()
        name = self.descriptor.name
        converted = None if value is None else convert(self._value, value, name)
        self._table.put_entry(convert(self._key, key, name), self._rules.stamp(converted), self._namespace)

    def remove(self, key: Any) -> None:
        """Remove a map key."""
        self.clean_some()
        self._table.remove_entry(convert(self._key, key, self.descriptor.name), self._namespace)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Return map keys and values that have not expired."""
        self.clean_some()
        for key, stored in self._table.entries(self._namespace):
            shown = self._apply(key, stored)
            if shown is not None:
                yield self._key.from_internal_type(key), self._show(shown)

    def is_empty(self) -> bool:
        """Return whether there is no map key, expired or not (`TtlMapState.isEmpty`)."""
        self.clean_some()
        return next(iter(self._table.entries(self._namespace)), None) is None

    def prune(self, namespace: Any) -> list[int]:
        """Remove the expired entries of the current key; return the times of last access of the others."""
        kept: list[int] = []
        for key, stored in self._table.entries(namespace):
            if stored is None or not self._rules.is_expired(stored):
                kept += [] if stored is None else [stored["last_access"]]
            else:
                self._table.remove_entry(key, namespace)
        return kept

    def _read_entry(self, key: Any) -> Stamped | None:
        self.clean_some()
        written = convert(self._key, key, self.descriptor.name)
        return self._apply(written, self._table.get_entry(written, self._namespace))

    def _apply(self, key: Any, stored: Stamped | None) -> Stamped | None:
        namespace = self._namespace
        return self._rules.read(
            stored,
            lambda stamped: self._table.put_entry(key, stamped, namespace),
            lambda: self._table.remove_entry(key, namespace),
        )

    def _show(self, stored: Stamped) -> Any:
        value = stored["value"]
        return None if value is None else self._value.from_internal_type(value)


class _TtlCombinedState(TtlState, CombinedState):
    """A combined state with TTL: an expired value does not count for the next one."""

    def add(self, value: Any) -> None:
        """Combine a value with that of the state; None removes it."""
        self.clean_some()
        super().add(value)

    def _read(self) -> Any:
        stored = self._read_single()
        return None if stored is None else self._type.from_internal_type(stored["value"])

    def _load(self, namespace: Any) -> Any:
        stored = self._find_visible(namespace)
        return None if stored is None else self._type.from_internal_type(stored["value"])

    def _take(self, namespace: Any) -> Any:
        value = self._load(namespace)
        self._table.remove(namespace)
        return value

    def _store(self, value: Any, namespace: Any) -> None:
        self._table.put(self._rules.stamp(convert(self._type, value, self.descriptor.name)), namespace)


class TtlReducingState(_TtlCombinedState, TableReducingState):
    """`ReducingState` with TTL."""


class TtlAggregatingState(_TtlCombinedState, TableAggregatingState):
    """`AggregatingState` with TTL."""
