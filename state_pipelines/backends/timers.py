"""Timers of one timer service and time domain (`InternalTimerServiceImpl`, `KeyGroupedInternalPriorityQueue`).

Timers live in the store as records of a priority queue, so that snapshots and restores move them like other state. An
index in memory gives their order.
"""

from __future__ import annotations

from enum import Enum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from state_pipelines.backends.current_key import CurrentKey
from state_pipelines.backends.value_codecs import Value, make_codec
from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.scalar.codec import read_value
from state_pipelines.serializers.build import timer
from state_pipelines.serializers.state_meta_info import TIMER_STATE, priority_queue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.backends.keyed_backend import KeyedStateBackend
    from state_pipelines.serializers.tree import Serializer

_TIMESTAMP = 8
_SLACK = 64
"""Removed timers that the index holds at least before it is rebuilt."""


class TimeDomain(Enum):
    """Time that a timer waits for; the values are those of the state names."""

    EVENT = "event"
    PROCESSING = "processing"


def timer_state_name(service: str, domain: TimeDomain) -> str:
    """Name of the state that holds the timers of a service (`InternalTimeServiceManagerImpl.TIMER_STATE_PREFIX`)."""
    return f"{TIMER_STATE}{domain.value}_{service}"


class Timer(NamedTuple):
    """A timer.

    Attributes:
        timestamp: epoch milliseconds.
        key: as value of the scalar codec.
        namespace: as value of the scalar codec; None of the void namespace.
    """

    timestamp: int
    key: Value
    namespace: Value


class TimerQueue:
    """Timers by timestamp; at equal timestamps by the bytes of their records.

    Args:
        backend: holds the timers, and those that it restored.
        name: of the state, see `timer_state_name`.
        namespace: serializer of the namespaces.

    Raises:
        StateMigrationError: restored timers have other serializers.
    """

    def __init__(self, backend: KeyedStateBackend, name: str, namespace: Serializer) -> None:
        registered = backend.register_timers(priority_queue(name, timer(backend.key_serializer, namespace)))
        self._entries = registered.entries
        self._current = backend.current
        self._other = CurrentKey(backend.key_context, backend.key_groups)
        self._prefix = backend.context.prefix
        fields = dict(registered.layout.key.fields)
        timestamp = make_codec(fields["timestamp"])
        self._encode_timestamp, self._decode_timestamp = timestamp.encode, timestamp.decode
        self._encode_namespace = make_codec(fields["state_namespace"]).encode
        self._rest = lay.Struct((("key", fields["state_key"]), ("namespace", fields["state_namespace"])))
        self._index: list[tuple[int, bytes]] = []
        self._count = 0
        self._fill()

    def __len__(self) -> int:
        """Number of timers."""
        return self._count

    def add(self, timestamp: int, key: Value, namespace: Value = None) -> bool:
        """Register a timer; False if it is registered already.

        Raises:
            UsageError: the key group of the key is not in the range of the subtask.
            ValueRangeError: timestamp, key or namespace do not fit their serializers.
        """
        record_key = self._make_key(timestamp, key, namespace)
        if self._entries.get(record_key) is not None:
            return False
        self._entries.put(record_key, b"")
        heappush(self._index, (timestamp, record_key))
        self._count += 1
        return True

    def remove(self, timestamp: int, key: Value, namespace: Value = None) -> bool:
        """Remove a timer; False if there is none. Errors as of `add`."""
        record_key = self._make_key(timestamp, key, namespace)
        if self._entries.get(record_key) is None:
            return False
        self._entries.delete(record_key)
        self._count -= 1
        if len(self._index) > 2 * self._count + _SLACK:
            self._fill()
        return True

    def peek(self) -> Timer | None:
        """The first timer; None when there is none."""
        self._drop_removed()
        return self._decode(*self._index[0]) if self._index else None

    def poll(self, up_to: int) -> Iterator[Timer]:
        """Remove and yield timers up to a timestamp, in order; also those that are added meanwhile."""
        while True:
            self._drop_removed()
            if not self._index or self._index[0][0] > up_to:
                return
            timestamp, record_key = heappop(self._index)
            self._entries.delete(record_key)
            self._count -= 1
            yield self._decode(timestamp, record_key)

    def timers(self) -> Iterator[Timer]:
        """All timers, in no order that means anything (`InternalTimerService.forEachEventTimeTimer`)."""
        for record_key in self._entries.keys():  # noqa: SIM118
            yield self._decode(self._read_timestamp(record_key), record_key)

    def _make_key(self, timestamp: int, key: Value, namespace: Value) -> bytes:
        current = self._current
        if current.value is None or key is not current.value:
            current = self._other
            current.set(key)
        head = current.plain or b""
        prefix = self._prefix
        return head[:prefix] + self._encode_timestamp(timestamp) + head[prefix:] + self._encode_namespace(namespace)

    def _drop_removed(self) -> None:
        while self._index and self._entries.get(self._index[0][1]) is None:
            heappop(self._index)

    def _fill(self) -> None:
        self._index = [(self._read_timestamp(record_key), record_key) for record_key in self._entries.keys()]  # noqa: SIM118
        heapify(self._index)
        self._count = len(self._index)

    def _read_timestamp(self, record_key: bytes) -> int:
        timestamp: int = self._decode_timestamp(record_key[self._prefix : self._prefix + _TIMESTAMP])
        return timestamp

    def _decode(self, timestamp: int, record_key: bytes) -> Timer:
        fields = read_value(self._rest, Reader(record_key, None, self._prefix + _TIMESTAMP))
        return Timer(timestamp, fields["key"], fields["namespace"])
