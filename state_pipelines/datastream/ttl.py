"""The time-to-live of state: its configuration, its rules and its clock.

* `StateTtlConfig`: the configuration (`pyflink.datastream.state.StateTtlConfig`).
* `write_ttl_config`: the configuration as Flink's changelog stores it: a Java serialization stream. Class descriptors
  and bytes are the same in Flink 1.20 to 2.3. Source: `KvStateChangeLoggerImpl.writeDefaultValueAndTtl`,
  `StateTtlConfig`, `java.time.Ser`, `java.util.EnumMap`.
* `TtlRules`, `TtlCleaner`: expiry and cleanup. Stored values with TTL are structs of `last_access` (epoch milliseconds)
  and `value`. Source: `AbstractTtlDecorator`, `TtlUtils`, `TtlIncrementalCleanup` of
  `org.apache.flink.runtime.state.ttl`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from state_pipelines.binary.java_stream import (
    BLOCK_DATA,
    ENUM,
    EXTERNALIZABLE,
    SERIALIZABLE,
    WRITE_METHOD,
    JavaBlock,
    JavaClassData,
    JavaClassDesc,
    JavaClassLiteral,
    JavaContent,
    JavaEnum,
    JavaFieldDesc,
    JavaObject,
    JavaString,
    JavaValue,
    write_stream,
)
from state_pipelines.datastream.type_information import Duration, Time, to_millis
from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Self

    from state_pipelines.backends.keyed_backend import KeyedStateBackend, StateTable

Clock: TypeAlias = "Callable[[], int]"
"""Returns epoch milliseconds."""


class ManualClock:
    """A clock that only moves when it is set.

    Args:
        millis: the time at first.
    """

    def __init__(self, millis: int = 0) -> None:
        self.millis = millis

    def __call__(self) -> int:
        """Return the time that was set."""
        return self.millis


if TYPE_CHECKING:
    _Name: TypeAlias = "StateTtlConfig.CleanupStrategies.Strategies"
    _Strategy: TypeAlias = "StateTtlConfig.CleanupStrategies.CleanupStrategy"

_DEFAULT_KEYS = 5
_DEFAULT_ENTRIES = 1000
_DEFAULT_PERIOD = Duration.of_days(30)


@dataclass(frozen=True)
class StateTtlConfig:
    """Time-to-live configuration of a state; `new_builder` makes one.

    Changelogs store it. Other snapshots do not: only their serializers show that values have a time of last access.
    """

    class UpdateType(Enum):
        """Accesses that prolong the life of a value."""

        Disabled = 0
        """TTL is off."""
        OnCreateAndWrite = 1
        """Writes."""
        OnReadAndWrite = 2
        """Writes, and reads of values that have not expired."""

    class StateVisibility(Enum):
        """Visibility of expired values that are still stored."""

        ReturnExpiredIfNotCleanedUp = 0
        """Expired values are returned until they are cleaned up; the next access does not find them."""
        NeverReturnExpired = 1
        """Expired values are never returned."""

    class TtlTimeCharacteristic(Enum):
        """The clock of TTL."""

        ProcessingTime = 0
        """Processing time of the subtask; there is no other."""

    class CleanupStrategies:
        """Clean-up strategies of a state; with any of them, a read that finds an expired value removes it.

        Args:
            strategies: those that are configured.
            is_cleanup_in_background: the strategies of the heap and of RocksDB run even if they are not configured.
        """

        class Strategies(Enum):
            """Ways to remove expired values that are not accessed."""

            FULL_STATE_SCAN_SNAPSHOT = 0
            INCREMENTAL_CLEANUP = 1
            ROCKSDB_COMPACTION_FILTER = 2

        class CleanupStrategy:
            """Settings of one strategy."""

        class EmptyCleanupStrategy(CleanupStrategy):
            """A strategy without settings."""

        class IncrementalCleanupStrategy(CleanupStrategy):
            """Clean-up of some keys at every access to the state.

            Args:
                cleanup_size: number of keys checked per run.
                run_cleanup_for_every_record: also run for every record that is processed.
            """

            def __init__(self, cleanup_size: int, run_cleanup_for_every_record: bool) -> None:
                self._cleanup_size, self._run_cleanup_for_every_record = cleanup_size, run_cleanup_for_every_record

            def get_cleanup_size(self) -> int:
                """Return the number of keys checked per run."""
                return self._cleanup_size

            def run_cleanup_for_every_record(self) -> bool:
                """Return whether the clean-up also runs for every record."""
                return self._run_cleanup_for_every_record

        @dataclass(frozen=True)
        class RocksdbCompactFilterCleanupStrategy(CleanupStrategy):
            """Clean-up while RocksDB compacts.

            Attributes:
                query_time_after_num_entries: number of entries after which the filter reads the clock again.
                periodic_compaction_time: age at which RocksDB compacts a file just for the clean-up.
            """

            query_time_after_num_entries: int
            periodic_compaction_time: Duration = _DEFAULT_PERIOD

            def get_query_time_after_num_entries(self) -> int:
                """Return the number of entries after which the clock is read again."""
                return self.query_time_after_num_entries

            def get_periodic_compaction_time(self) -> Duration:
                """Return the age at which a file is compacted."""
                return self.periodic_compaction_time

        def __init__(self, strategies: Mapping[Strategies, CleanupStrategy], is_cleanup_in_background: bool) -> None:
            self._strategies = strategies
            self._is_cleanup_in_background = is_cleanup_in_background

        def is_cleanup_in_background(self) -> bool:
            """Return whether the strategies of the heap and of RocksDB run even if they are not configured."""
            return self._is_cleanup_in_background

        def get_configured_strategies(self) -> Mapping[Strategies, CleanupStrategy]:
            """Return the strategies that are configured, without those that run by default."""
            return self._strategies

        def in_full_snapshot(self) -> bool:
            """Return whether snapshots leave expired values out."""
            return self.Strategies.FULL_STATE_SCAN_SNAPSHOT in self._strategies

        def get_incremental_cleanup_strategy(self) -> IncrementalCleanupStrategy | None:
            """Return the incremental strategy; by default 5 keys per access, None if clean-up in background is off."""
            found = self._strategies.get(self.Strategies.INCREMENTAL_CLEANUP)
            if isinstance(found, self.IncrementalCleanupStrategy):
                return found
            return self.IncrementalCleanupStrategy(_DEFAULT_KEYS, False) if self._is_cleanup_in_background else None

        def get_rocksdb_compact_filter_cleanup_strategy(self) -> RocksdbCompactFilterCleanupStrategy | None:
            """Return the strategy of RocksDB; by default 1,000 entries, None if clean-up in background is off."""
            found = self._strategies.get(self.Strategies.ROCKSDB_COMPACTION_FILTER)
            if isinstance(found, self.RocksdbCompactFilterCleanupStrategy):
                return found
            return (
                self.RocksdbCompactFilterCleanupStrategy(_DEFAULT_ENTRIES) if self._is_cleanup_in_background else None
            )

    class Builder:
        """Builder of a `StateTtlConfig`; its methods return the builder itself.

        Args:
            ttl: life of a value after its last access.

        Raises:
            UsageError: it is not longer than zero.
        """

        def __init__(self, ttl: Time | Duration) -> None:
            self._update_type = StateTtlConfig.UpdateType.OnCreateAndWrite
            self._state_visibility = StateTtlConfig.StateVisibility.NeverReturnExpired
            self._ttl_time_characteristic = StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
            self._is_cleanup_in_background = True
            self._strategies: dict[_Name, _Strategy] = {}
            self.set_ttl(ttl)

        def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> Self:
            """Set the accesses that prolong the life of a value."""
            self._update_type = update_type
            return self

        def update_ttl_on_create_and_write(self) -> Self:
            """Prolong the life of a value when it is written."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> Self:
            """Prolong the life of a value when it is written or read."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

        def set_state_visibility(self, state_visibility: StateTtlConfig.StateVisibility) -> Self:
            """Set the visibility of expired values."""
            self._state_visibility = state_visibility
            return self

        def return_expired_if_not_cleaned_up(self) -> Self:
            """Return expired values that are still stored."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self) -> Self:
            """Never return expired values."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

        def set_ttl_time_characteristic(self, ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic) -> Self:
            """Set the clock."""
            self._ttl_time_characteristic = ttl_time_characteristic
            return self

        def use_processing_time(self) -> Self:
            """Use the processing time of the subtask."""
            return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)

        def cleanup_full_snapshot(self) -> Self:
            """Leave expired values out of full snapshots; unlike in Flink, the live state drops them too."""
            cleanup = StateTtlConfig.CleanupStrategies
            return self._with(cleanup.Strategies.FULL_STATE_SCAN_SNAPSHOT, cleanup.EmptyCleanupStrategy())

        def cleanup_incrementally(self, cleanup_size: int, run_cleanup_for_every_record: bool) -> Self:
            """Check some keys at every access to the state, and remove expired values (heap only, as in Flink).

            Args:
                cleanup_size: number of keys checked per access.
                run_cleanup_for_every_record: also check that many keys for every record.

            Raises:
                UsageError: `cleanup_size` is not positive.
            """
            if cleanup_size <= 0:
                raise UsageError("Number of incrementally cleaned up state entries should be positive.")
            cleanup = StateTtlConfig.CleanupStrategies
            strategy = cleanup.IncrementalCleanupStrategy(cleanup_size, run_cleanup_for_every_record)
            return self._with(cleanup.Strategies.INCREMENTAL_CLEANUP, strategy)

        def cleanup_in_rocksdb_compact_filter(
            self, query_time_after_num_entries: int, periodic_compaction_time: Duration | None = None
        ) -> Self:
            """Remove expired values while RocksDB compacts.

            Args:
                query_time_after_num_entries: number of entries after which the filter reads the clock again.
                periodic_compaction_time: age at which RocksDB compacts a file just for the clean-up; default 30 days.
            """
            cleanup, period = StateTtlConfig.CleanupStrategies, periodic_compaction_time or _DEFAULT_PERIOD
            strategy = cleanup.RocksdbCompactFilterCleanupStrategy(query_time_after_num_entries, period)
            return self._with(cleanup.Strategies.ROCKSDB_COMPACTION_FILTER, strategy)

        def disable_cleanup_in_background(self) -> Self:
            """Run only the strategies that are configured."""
            self._is_cleanup_in_background = False
            return self

        def set_ttl(self, ttl: Time | Duration) -> Self:
            """Set the life of a value.

            Raises:
                UsageError: it is not longer than zero.
            """
            if to_millis(ttl) <= 0:
                raise UsageError("TTL is expected to be positive.")
            self._ttl = ttl
            return self

        def build(self) -> StateTtlConfig:
            """Return the configuration."""
            return StateTtlConfig(
                self._update_type,
                self._state_visibility,
                self._ttl_time_characteristic,
                self._ttl,
                StateTtlConfig.CleanupStrategies(dict(self._strategies), self._is_cleanup_in_background),
            )

        def _with(self, name: _Name, strategy: _Strategy) -> Self:
            self._strategies[name] = strategy
            return self

    update_type: UpdateType
    state_visibility: StateVisibility
    ttl_time_characteristic: TtlTimeCharacteristic
    ttl: Time | Duration
    cleanup_strategies: CleanupStrategies = field(compare=False)

    @staticmethod
    def new_builder(ttl: Time | Duration) -> StateTtlConfig.Builder:
        """Return a builder with Flink's defaults: on create and write, never return expired, clean up in background.

        Args:
            ttl: life of a value after its last access.

        Raises:
            UsageError: it is not longer than zero.
        """
        return StateTtlConfig.Builder(ttl)

    def get_update_type(self) -> StateTtlConfig.UpdateType:
        """Return the accesses that prolong the life of a value."""
        return self.update_type

    def get_state_visibility(self) -> StateTtlConfig.StateVisibility:
        """Return the visibility of expired values."""
        return self.state_visibility

    def get_ttl(self) -> Time | Duration:
        """Return the life of a value."""
        return self.ttl

    def get_ttl_time_characteristic(self) -> StateTtlConfig.TtlTimeCharacteristic:
        """Return the clock."""
        return self.ttl_time_characteristic

    def is_enabled(self) -> bool:
        """Return whether values expire at all."""
        return self.update_type is not StateTtlConfig.UpdateType.Disabled

    def get_cleanup_strategies(self) -> StateTtlConfig.CleanupStrategies:
        """Return the clean-up strategies."""
        return self.cleanup_strategies


_CONFIG = "org.apache.flink.api.common.state.StateTtlConfig"
_CLEANUP = f"{_CONFIG}$CleanupStrategies"
_NANOS_OF_SECOND = 1_000_000_000
# Bytes of a serialized `java.time.Duration`: `java.time.Ser.DURATION_TYPE`, seconds, nanoseconds of the second.
_DURATION_TYPE = 1
_DURATION = struct.Struct(">bqi")

_Strategies = StateTtlConfig.CleanupStrategies.Strategies


def _signature(name: str) -> JavaString:
    return JavaString(f"L{name.replace('.', '/')};")


def _enum_class(name: str) -> JavaClassDesc:
    return JavaClassDesc(name, 0, SERIALIZABLE | ENUM, (), _ENUM)


# Shared objects: as in Java, the stream has an object in full once, and later refers back to it.
_ENUM = JavaClassDesc("java.lang.Enum", 0, SERIALIZABLE | ENUM)
_VISIBILITY = _enum_class(f"{_CONFIG}$StateVisibility")
_CHARACTERISTIC = _enum_class(f"{_CONFIG}$TtlTimeCharacteristic")
_UPDATE_TYPE = _enum_class(f"{_CONFIG}$UpdateType")
_STRATEGIES = _enum_class(f"{_CLEANUP}$Strategies")
_DURATION_SIGNATURE = _signature("java.time.Duration")
_SERIALIZED_TIME = JavaClassDesc("java.time.Ser", -7683839454370182990, EXTERNALIZABLE | BLOCK_DATA)
_ENUM_MAP = JavaClassDesc(
    "java.util.EnumMap",
    458661240069192865,
    SERIALIZABLE | WRITE_METHOD,
    (JavaFieldDesc("L", "keyType", _signature("java.lang.Class")),),
)
_CLEANUP_STRATEGIES = JavaClassDesc(
    _CLEANUP,
    -1617740467277313524,
    SERIALIZABLE,
    (JavaFieldDesc("Z", "isCleanupInBackground"), JavaFieldDesc("L", "strategies", _signature("java.util.EnumMap"))),
)
_EMPTY_STRATEGY = JavaClassDesc(f"{_CLEANUP}$EmptyCleanupStrategy", 1373998465131443873, SERIALIZABLE)
_INCREMENTAL_STRATEGY = JavaClassDesc(
    f"{_CONFIG}$IncrementalCleanupStrategy",
    3109278696501988780,
    SERIALIZABLE,
    (JavaFieldDesc("I", "cleanupSize"), JavaFieldDesc("Z", "runCleanupForEveryRecord")),
)
_FILTER_STRATEGY = JavaClassDesc(
    f"{_CONFIG}$RocksdbCompactFilterCleanupStrategy",
    3109278796506988980,
    SERIALIZABLE,
    (JavaFieldDesc("J", "queryTimeAfterNumEntries"), JavaFieldDesc("L", "periodicCompactionTime", _DURATION_SIGNATURE)),
)
_TTL_CONFIG = JavaClassDesc(
    _CONFIG,
    -7592693245044289793,
    SERIALIZABLE,
    (
        JavaFieldDesc("L", "cleanupStrategies", _signature(_CLEANUP)),
        JavaFieldDesc("L", "stateVisibility", _signature(_VISIBILITY.name)),
        JavaFieldDesc("L", "ttl", _DURATION_SIGNATURE),
        JavaFieldDesc("L", "ttlTimeCharacteristic", _signature(_CHARACTERISTIC.name)),
        JavaFieldDesc("L", "updateType", _signature(_UPDATE_TYPE.name)),
    ),
)


def write_ttl_config(config: StateTtlConfig) -> bytes:
    """Return the bytes that Java's `ObjectOutputStream.writeObject` writes for a configuration."""
    return write_stream(
        _object(
            _TTL_CONFIG,
            _make_cleanup(config.get_cleanup_strategies()),
            JavaEnum(_VISIBILITY, JavaString(config.get_state_visibility().name)),
            _make_duration(config.get_ttl()),
            JavaEnum(_CHARACTERISTIC, JavaString(config.get_ttl_time_characteristic().name)),
            JavaEnum(_UPDATE_TYPE, JavaString(config.get_update_type().name)),
        )
    )


def _make_cleanup(cleanup: StateTtlConfig.CleanupStrategies) -> JavaObject:
    configured = cleanup.get_configured_strategies()
    entries: list[JavaContent] = [JavaBlock(len(configured).to_bytes(4, "big"))]
    for name in _Strategies:
        if name in configured:
            entries += [JavaEnum(_STRATEGIES, JavaString(name.name)), _make_strategy(configured[name])]
    strategies = JavaObject(_ENUM_MAP, (JavaClassData((JavaClassLiteral(_STRATEGIES),), tuple(entries)),))
    return _object(_CLEANUP_STRATEGIES, cleanup.is_cleanup_in_background(), strategies)


def _make_strategy(strategy: StateTtlConfig.CleanupStrategies.CleanupStrategy) -> JavaObject:
    match strategy:
        case StateTtlConfig.CleanupStrategies.IncrementalCleanupStrategy():
            return _object(_INCREMENTAL_STRATEGY, strategy.get_cleanup_size(), strategy.run_cleanup_for_every_record())
        case StateTtlConfig.CleanupStrategies.RocksdbCompactFilterCleanupStrategy():
            return _object(
                _FILTER_STRATEGY,
                strategy.get_query_time_after_num_entries(),
                _make_duration(strategy.get_periodic_compaction_time()),
            )
        case _:
            return _object(_EMPTY_STRATEGY)


def _make_duration(length: Time | Duration) -> JavaObject:
    nanos = length.nanos if isinstance(length, Duration) else Duration.of_millis(to_millis(length)).nanos
    data = _DURATION.pack(_DURATION_TYPE, *divmod(nanos, _NANOS_OF_SECOND))
    return JavaObject(_SERIALIZED_TIME, (JavaClassData(annotation=(JavaBlock(data),)),))


def _object(desc: JavaClassDesc, *values: JavaValue) -> JavaObject:
    return JavaObject(desc, (JavaClassData(values),))


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
        """Return a value for storage, with the current time as its time of last access."""
        return {"last_access": self.clock(), "value": value}

    def is_expired(self, stored: Stamped) -> bool:
        """Return whether the life of a value has ended."""
        return self.find_end(int(stored["last_access"])) <= self.clock()

    def find_end(self, last_access: int) -> int:
        """Return the time at which a value with a given last access expires; at most Java's `Long.MAX_VALUE`."""
        return min(last_access + self.millis, _LARGEST)

    def is_visible(self, stored: Stamped) -> bool:
        """Return whether a read returns a value: it has not expired, or expired values are returned."""
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
            The value; None if there is none, or if it has expired and is not to be returned.
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

    A pass checks all keys that the state had at the start of the pass, some keys per call. The next pass starts when
    the oldest value left by the last pass may have expired.

    Args:
        table: of the state.
        backend: the keyed backend; its current key is changed during a call and restored after it.
        rules: of the state.
        prune: removes the expired values of the current key and a namespace; returns the last-access times of the
            remaining values.
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
        """Check up to `size` keys of the current pass; do nothing if no pass is due."""
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
        """Check all keys in a new pass."""
        current = self._backend.current_key
        self._begin(self._rules.clock())
        while self._step():
            pass
        self._set_back(current)

    def _begin(self, now: int) -> None:
        self._pass = iter(list(self._table.keys_and_namespaces()))
        # A pass does not check values that are written after its start, but none of them is older than `now`.
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
