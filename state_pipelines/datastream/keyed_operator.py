"""Operators that run one function for the keys of one subtask.

They can be used like Flink's test harnesses for operators (`KeyedOneInputStreamOperatorTestHarness`):

    with KeyedProcessOperator(CountClicks(), lambda click: click["user"], Types.STRING()) as operator:
        assert operator.process({"user": "ada"}, timestamp=1) == [("ada", 1)]
        assert operator.advance_watermark(3_600_000) == []
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from state_pipelines.backends.changelog_snapshots import ChangelogSettings, ChangelogSnapshots
from state_pipelines.backends.changelog_store import ChangelogStore
from state_pipelines.backends.heap_store import HeapStore
from state_pipelines.backends.incremental_snapshots import IncrementalSnapshots
from state_pipelines.backends.keyed_backend import KeyedStateBackend
from state_pipelines.backends.keyed_snapshots import write_full_snapshot
from state_pipelines.backends.raw_streams import RawKeyedOutput
from state_pipelines.backends.rocksdb_store import RocksStore
from state_pipelines.backends.timers import TimeDomain as QueueDomain
from state_pipelines.backends.timers import TimerQueue, timer_state_name
from state_pipelines.datastream.derived_types import derive_type
from state_pipelines.datastream.function_operator import FunctionOperator
from state_pipelines.datastream.functions import (
    ElementContext,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
)
from state_pipelines.datastream.key_types import check_key_type
from state_pipelines.datastream.keyed_states import BackendKeyedStates
from state_pipelines.datastream.pyflink_layout import KeyRowTypeInfo
from state_pipelines.datastream.timer_service import TimeDomain, TimerService
from state_pipelines.errors import UsageError
from state_pipelines.keyed.key_groups import key_group_prefix_size
from state_pipelines.serializers.build import VOID_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from state_pipelines.backends.entry_store import EntryStore
    from state_pipelines.backends.keyed_snapshots import KeyedSnapshot
    from state_pipelines.backends.local_backup import LocalBackup
    from state_pipelines.backends.timers import Timer
    from state_pipelines.datastream.aggregations import Function
    from state_pipelines.datastream.functions import Output
    from state_pipelines.datastream.restored_state import RestoredState
    from state_pipelines.datastream.state_latencies import LatencyTracking
    from state_pipelines.datastream.table_states import TableState
    from state_pipelines.datastream.type_information import TypeDescription
    from state_pipelines.keyed.hashing.hash_expressions import HashExpression
    from state_pipelines.metadata.handles import KeyedStateHandle
    from state_pipelines.operations.write.state_formats import Format
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.storage import Location


class KeyedOperator(FunctionOperator):
    """Runs a function for the keys of one subtask.

    Args:
        function: that the user wrote.
        key_type: type of the keys, or another description of it (see `Types.of`).
        make_store: makes the store of the state, given the bytes of a key-group prefix; default the heap.
        hashes: `hashCode` of user classes among the keys, by class name.
        backup: has and keeps copies of the files of snapshots on this machine; default none.
        changelog: log every change, so that a snapshot uploads the changes only; default no.
        pyflink_state: keep keys and state as PyFlink does, so that the function goes on there, instead of as Java does.
        latencies: time the accesses to keyed states into histograms among the metrics; default no.
        options: as of `FunctionOperator`.

    Raises:
        UsageError: Flink rejects the type of the keys.
    """

    timer_service: ClassVar[str] = "user-timers"
    """Name of the timer service (`KeyedProcessOperator.open`), which is part of the names of the states of timers."""

    timer_namespace: ClassVar[Serializer] = VOID_NAMESPACE
    """Serializer of the namespaces of timers."""

    function: Any

    def __init__(
        self,
        function: Function,
        key_type: TypeDescription,
        *,
        make_store: Callable[[int], EntryStore] = HeapStore,
        hashes: Mapping[str, HashExpression] | None = None,
        backup: LocalBackup | None = None,
        changelog: ChangelogSettings | None = None,
        pyflink_state: bool = False,
        latencies: LatencyTracking | None = None,
        **options: Any,
    ) -> None:
        super().__init__(function, **options)
        self._backup = backup
        self._changelog = changelog
        self._pyflink_state = pyflink_state
        self._latencies = latencies
        self._key_type = derive_type(key_type)
        if pyflink_state:
            self._key_type = KeyRowTypeInfo(self._key_type)
        check_key_type(self._key_type.serializer, hashes or {})
        self._make_store = make_store
        self._hashes = hashes
        self._backend: KeyedStateBackend | None = None
        self._increments: IncrementalSnapshots | ChangelogSnapshots | None = None
        self._completed = -1

    @property
    def backend(self) -> KeyedStateBackend:
        """The keyed state of the subtask.

        Raises:
            UsageError: the operator is not open.
        """
        if self._backend is None:
            raise UsageError("the operator is not open", hint="Call open(), or use the operator in a with statement")
        return self._backend

    @override
    def list_serializers(self) -> Iterator[Serializer]:
        """All serializers of the key, and of the registered and restored states."""
        yield self.backend.key_serializer
        for info in self.backend.states:
            yield from (serializer for _, serializer in info.serializers)
        yield from super().list_serializers()

    def count_timers(self, domain: TimeDomain) -> int:
        """Return the number of timers of event time or processing time."""
        return len(self._event_timers if domain is TimeDomain.EVENT_TIME else self._processing_timers)

    def prepare_snapshot(self, checkpoint_id: int, timestamp: int | None = None) -> None:
        """Let the function bring its operator state up to date, and remove values that TTL leaves out of snapshots."""
        super().prepare_snapshot(checkpoint_id, timestamp)
        self._states.clean_for_snapshot()

    def _open_keyed_state(self, max_parallelism: int, restored: RestoredState | None) -> BackendKeyedStates:
        entries = self._make_store(key_group_prefix_size(max_parallelism))
        self._backend = KeyedStateBackend(
            entries if self._changelog is None else ChangelogStore(entries),
            self._key_type.serializer,
            self.task.find_key_groups(max_parallelism),
            max_parallelism,
            self._layouts,
            self._hashes,
        )
        self._increments = None
        self._completed = -1 if restored is None else restored.checkpoint_id
        store = self._backend.store
        if restored is not None and restored.databases is not None and isinstance(store, RocksStore):
            self._increments = restored.databases.restore(self._backend, store, restored.context, self._backup)
        elif restored is not None:
            files = restored.find_files(self._backend.key_groups, self._backup)
            self._backend.restore(files, restored.context)
        if isinstance(store, ChangelogStore):
            going_on = None if restored is None else restored.find_changelog(self._backend.key_groups)
            self._increments = ChangelogSnapshots(self._backend, store, going_on, self._changelog)
        self._states = BackendKeyedStates(
            self._backend, self._clock, pyflink_state=self._pyflink_state, track=self._track_latency
        )
        return self._states

    def _make_raw_keyed_output(self) -> RawKeyedOutput:
        return RawKeyedOutput(self.key_groups)

    def _track_latency(self, state: TableState) -> None:
        if self._latencies is not None:
            self._latencies.track(state, self.metrics)

    def _write_keyed_state(
        self, file_format: Format, directory: Location, name: str, checkpoint_id: int, *, compressed: bool
    ) -> KeyedStateHandle | None:
        write = partial(
            write_full_snapshot, self.backend, file_format, directory, name, checkpoint_id, compressed=compressed
        )
        return self._write_with_copies(write, checkpoint_id, directory)

    def _write_increment(
        self, directory: Location, shared: Location, checkpoint_id: int, *, full: bool
    ) -> KeyedStateHandle | None:
        store = self.backend.store
        if self._increments is None:
            if not isinstance(store, RocksStore):
                hint = "Set state.backend.type to rocksdb, or state.changelog.enabled to true"
                raise UsageError("only RocksDB and the changelog have incremental snapshots", hint=hint)
            self._increments = IncrementalSnapshots(self.backend, store, backup=self._backup)
        write = partial(self._increments.write, checkpoint_id, directory, shared, full=full)
        if isinstance(self._increments, IncrementalSnapshots):
            # Links its tables, which are on this machine already.
            return write().handle
        return self._write_with_copies(write, checkpoint_id, directory)

    def _write_with_copies(
        self, write: Callable[[], KeyedSnapshot], checkpoint_id: int, directory: Location
    ) -> KeyedStateHandle | None:
        """Write a snapshot, and keep copies of its files on this machine where these are wanted."""
        if self._backup is None:
            return write().handle
        with self._backup.write_copies(checkpoint_id):
            handle = write().handle
        self._backup.keep_written(checkpoint_id, handle, directory, self._completed)
        return handle

    @override
    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell the function, and base later incremental snapshots on this one."""
        super().notify_checkpoint_complete(checkpoint_id)
        self._completed = max(self._completed, checkpoint_id)
        if self._increments is not None:
            self._increments.complete(checkpoint_id)

    @override
    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Tell the function, and base no incremental snapshot on this one."""
        super().notify_checkpoint_aborted(checkpoint_id)
        if self._increments is not None:
            self._increments.abort(checkpoint_id)

    def _close_keyed_state(self) -> None:
        if self._backend is not None:
            self._backend.close()
            self._backend = None

    def _open_contexts(self) -> None:
        self._event_timers, self._processing_timers = (
            TimerQueue(self.backend, timer_state_name(self.timer_service, domain), self.timer_namespace)
            for domain in QueueDomain
        )
        self._timers = TimerService(self.backend, self._event_timers, self._processing_timers, self._clock)
        self._context: Any = ElementContext(self._timers)

    def _on_timer(self, timer: Timer, key: Any, domain: TimeDomain) -> Output:
        """Call the function for a timer of a key, as the function knows it."""
        self._context.set_key(key, timer.timestamp, domain)
        emitted: Output = self.function.on_timer(timer.timestamp, self._context)
        return emitted

    def _set_key(self, key: Any) -> None:
        self.backend.set_current_key(self._key_type.to_internal_type(key))
        self._states.clean_by_record()

    def _fire_event_timers(self, up_to: int) -> list[Any]:
        self._timers.watermark = up_to
        return self._fire(self._event_timers, up_to, TimeDomain.EVENT_TIME)

    def _fire_processing_timers(self, up_to: int) -> list[Any]:
        return self._fire(self._processing_timers, up_to, TimeDomain.PROCESSING_TIME)

    def _fire(self, timers: TimerQueue, up_to: int, domain: TimeDomain) -> list[Any]:
        output: list[Any] = []
        for timer in timers.poll(up_to):
            self.backend.set_current_key(timer.key)
            key = self._key_type.from_internal_type(timer.key)
            self._collect(self._on_timer(timer, key, domain), output)
        return output


class KeyedProcessOperator(KeyedOperator):
    """Runs a `KeyedProcessFunction`.

    Args:
        function: that the user wrote.
        key_selector: finds the key of an element.
        key_type: type of the keys, or another description of it (see `Types.of`).
        options: as of `KeyedOperator`.
    """

    function_types: ClassVar = (KeyedProcessFunction,)
    function: KeyedProcessFunction

    def __init__(
        self,
        function: KeyedProcessFunction,
        key_selector: KeySelector | Callable[[Any], Any],
        key_type: TypeDescription,
        **options: Any,
    ) -> None:
        super().__init__(function, key_type, **options)
        self._get_key = find_key_function(key_selector)

    def process(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process an element.

        Args:
            value: the element.
            timestamp: epoch milliseconds of event time; None without.

        Returns:
            What the function emits.
        """
        key = self._get_key(value)
        self._set_key(key)
        self._context.set_key(key, timestamp)
        return self._collect(self.function.process_element(value, self._context), [])


class KeyedCoProcessOperator(KeyedOperator):
    """Runs a `KeyedCoProcessFunction`.

    Args:
        function: that the user wrote.
        key_selector1: finds the key of an element of the first input.
        key_selector2: finds the key of an element of the second input.
        key_type: type of the keys, or another description of it (see `Types.of`).
        options: as of `KeyedOperator`.
    """

    function_types: ClassVar = (KeyedCoProcessFunction,)
    function: KeyedCoProcessFunction

    def __init__(
        self,
        function: KeyedCoProcessFunction,
        key_selector1: KeySelector | Callable[[Any], Any],
        key_selector2: KeySelector | Callable[[Any], Any],
        key_type: TypeDescription,
        **options: Any,
    ) -> None:
        super().__init__(function, key_type, **options)
        self._get_key1 = find_key_function(key_selector1)
        self._get_key2 = find_key_function(key_selector2)

    def process1(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process an element of the first input; as `KeyedProcessOperator.process`."""
        return self._process(self.function.process_element1, self._get_key1(value), value, timestamp)

    def process2(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process an element of the second input; as `KeyedProcessOperator.process`."""
        return self._process(self.function.process_element2, self._get_key2(value), value, timestamp)

    def _process(
        self, process_element: Callable[[Any, ElementContext], Output], key: Any, value: Any, timestamp: int | None
    ) -> list[Any]:
        self._set_key(key)
        self._context.set_key(key, timestamp)
        return self._collect(process_element(value, self._context), [])


def find_key_function(key_selector: KeySelector | Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function of a key selector."""
    return key_selector.get_key if isinstance(key_selector, KeySelector) else key_selector
