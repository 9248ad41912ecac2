"""Configuration of the time-to-live of state (`pyflink.datastream.state.StateTtlConfig`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from state_pipelines.datastream.durations import Duration, Time, to_millis
from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self, TypeAlias

    _Name: TypeAlias = "StateTtlConfig.CleanupStrategies.Strategies"
    _Strategy: TypeAlias = "StateTtlConfig.CleanupStrategies.CleanupStrategy"

_DEFAULT_KEYS = 5
_DEFAULT_ENTRIES = 1000
_DEFAULT_PERIOD = Duration.of_days(30)


@dataclass(frozen=True)
class StateTtlConfig:
    """Time-to-live of the values of a state; `new_builder` makes one.

    Snapshots do not store it, only that values have a time of their last access; logs of changes do.
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
        """They are returned; the next access does not find them."""
        NeverReturnExpired = 1
        """They are not returned."""

    class TtlTimeCharacteristic(Enum):
        """The clock of TTL."""

        ProcessingTime = 0
        """Processing time of the subtask; there is no other."""

    class CleanupStrategies:
        """Clean-up strategies of a state; an access that finds an expired value removes it with all of them.

        Args:
            strategies: those that are configured.
            is_cleanup_in_background: the backend's own strategy runs if none is configured for it.
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
                cleanup_size: keys that are looked at.
                run_cleanup_for_every_record: also at every record that is processed.
            """

            def __init__(self, cleanup_size: int, run_cleanup_for_every_record: bool) -> None:
                self._cleanup_size, self._run_cleanup_for_every_record = cleanup_size, run_cleanup_for_every_record

            def get_cleanup_size(self) -> int:
                """Return the number of keys that are looked at."""
                return self._cleanup_size

            def run_cleanup_for_every_record(self) -> bool:
                """Return whether keys are looked at for every record too."""
                return self._run_cleanup_for_every_record

        @dataclass(frozen=True)
        class RocksdbCompactFilterCleanupStrategy(CleanupStrategy):
            """Clean-up while RocksDB compacts.

            Attributes:
                query_time_after_num_entries: entries after which the clock is read again.
                periodic_compaction_time: age at which a file is compacted for the clean-up alone.
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
            """Return whether the backend's own strategy runs by default."""
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
        """Builder of a `StateTtlConfig`; methods change it and return it.

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
            """Leave expired values out of full snapshots; the live state keeps them."""
            cleanup = StateTtlConfig.CleanupStrategies
            return self._with(cleanup.Strategies.FULL_STATE_SCAN_SNAPSHOT, cleanup.EmptyCleanupStrategy())

        def cleanup_incrementally(self, cleanup_size: int, run_cleanup_for_every_record: bool) -> Self:
            """Look at some keys at every access to the state, and remove expired values (heap only, as in Flink).

            Args:
                cleanup_size: keys per access.
                run_cleanup_for_every_record: also at every record.

            Raises:
                UsageError: no key would be looked at.
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
                query_time_after_num_entries: entries after which the clock is read again.
                periodic_compaction_time: age at which a file is compacted for the clean-up alone; default 30 days.
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
