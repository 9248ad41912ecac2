"""Rules of the time-to-live of state: which values have expired, and what an access does to them.

Stored values with TTL are structs of `last_access` (epoch milliseconds) and `value`.
Source: `AbstractTtlDecorator`, `TtlUtils`, `TtlIncrementalCleanup` of `org.apache.flink.runtime.state.ttl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from state_pipelines.datastream.durations import to_millis
from state_pipelines.datastream.ttl_config import StateTtlConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.backends.keyed_backend import KeyedStateBackend
    from state_pipelines.backends.state_access import StateTable
    from state_pipelines.datastream.clocks import Clock

Stamped: TypeAlias = dict[str, Any]
"""A stored value: `last_access` and `value`."""

_LARGEST = (1 << 63) - 1


class TtlRules:
    """Expiry of the values of one state.

    Args:
        config: of the state.
        clock: processing time in epoch milliseconds.
    """

    def __init__(self, config: StateTtlConfig, clock: Clock) -> None:
        self.millis = to_millis(config.get_ttl())
        self.is_prolonged_by_read = config.get_update_type() is StateTtlConfig.UpdateType.OnReadAndWrite
        self.returns_expired = (
            config.get_state_visibility() is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp
        )
        self.clock = clock

    def stamp(self, value: Any) -> Stamped:
        """Return a value as it is stored when it is written now."""
        return {"last_access": self.clock(), "value": value}

    def is_expired(self, stored: Stamped) -> bool:
        """Return whether the life of a value has ended."""
        return self.find_end(int(stored["last_access"])) <= self.clock()

    def find_end(self, last_access: int) -> int:
        """Return the time at which a value expires that was accessed last at some time; at most Java's largest."""
        return min(last_access + self.millis, _LARGEST)

    def is_visible(self, stored: Stamped) -> bool:
        """Return whether a read returns a value."""
        return self.returns_expired or not self.is_expired(stored)

    def read(
        self, stored: Stamped | None, update: Callable[[Stamped], None], remove: Callable[[], None]
    ) -> Stamped | None:
        """Apply the rules to a value that is read.

        Args:
            stored: the value; None if there is none.
            update: writes the value, for reads that prolong its life.
            remove: removes the value.

        Returns:
            The value if the read returns it.
        """
        if stored is None:
            return None
        if self.is_expired(stored):
            remove()
            return stored if self.returns_expired else None
        if self.is_prolonged_by_read:
            update(self.stamp(stored["value"]))
        return stored


class TtlCleaner:
    """Removes expired values of all keys of one state.

    A pass looks at all keys that the state had at its begin, some at a time. The next pass begins when the oldest value
    that the last one has left may have expired.

    Args:
        table: of the state.
        backend: whose current key changes meanwhile, and is set back.
        rules: of the state.
        prune: removes what has expired for the current key and a namespace; returns the times of last access that are
            left.
    """

    def __init__(
        self, table: StateTable, backend: KeyedStateBackend, rules: TtlRules, prune: Callable[[Any], list[int]]
    ) -> None:
        self._table = table
        self._backend = backend
        self._rules = rules
        self._prune = prune
        self._pass: Iterator[tuple[Any, Any]] | None = None
        self._oldest = 0
        self._next_pass = 0

    def clean(self, size: int) -> None:
        """Look at up to `size` keys."""
        if self._pass is None:
            now = self._rules.clock()
            if now < self._next_pass:
                return
            self._begin(now)
        current = self._backend.current_key
        for _ in range(size):
            if not self._step():
                break
        self._set_back(current)

    def clean_all(self) -> None:
        """Look at all keys."""
        current = self._backend.current_key
        self._begin(self._rules.clock())
        while self._step():
            pass
        self._set_back(current)

    def _begin(self, now: int) -> None:
        self._pass = iter(list(self._table.keys_and_namespaces()))
        # Values that are written during the pass, and not seen by it, are not older than its begin.
        self._oldest = now

    def _step(self) -> bool:
        assert self._pass is not None
        key, namespace = next(self._pass, (None, None))
        if key is None:
            self._pass = None
            self._next_pass = self._rules.find_end(self._oldest)
            return False
        self._backend.set_current_key(key)
        self._oldest = min([self._oldest, *self._prune(namespace)])
        return True

    def _set_back(self, key: Any) -> None:
        if key is None:
            self._backend.clear_current_key()
        else:
            self._backend.set_current_key(key)
