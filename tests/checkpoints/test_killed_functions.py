"""A run of a function with two inputs is killed at storage calls and between steps, and started again.

A run that continues from what is left ends with the state of an undisturbed run.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.backends.changelog import ChangelogSettings
from state_pipelines.backends.entry_store import HeapStore
from state_pipelines.backends.rocksdb_store import RocksStore
from state_pipelines.checkpoints.completed_checkpoints import CheckpointDirectories, find_checkpoints
from state_pipelines.checkpoints.coordinator import CheckpointCoordinator, CheckpointedOperator, TaskCheckpoint
from state_pipelines.checkpoints.options import CheckpointOptions
from state_pipelines.datastream import (
    CheckpointedFunction,
    KeyedCoProcessFunction,
    KeyedCoProcessOperator,
    ListStateDescriptor,
    MapStateDescriptor,
    RestoredState,
    TaskInfo,
    Types,
    ValueStateDescriptor,
)
from state_pipelines.keyed.key_groups import compute_operator_index
from state_pipelines.metadata import compute_operator_id
from state_pipelines.operations.dump import dump
from state_pipelines.operations.write.keyed_rewrite import Format, make_file_name
from state_pipelines.storage import Location, join, locations
from tests.checkpoints.tasks import JOB, missing_files
from tests.storages import CountedFileSystem, Fault, LostResponse, empty_counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from state_pipelines.snapshot import Snapshot

UID = "orders"
PARALLELISM, MAX_PARALLELISM = 2, 8
OPERATOR = CheckpointedOperator(compute_operator_id(UID), PARALLELISM, MAX_PARALLELISM, UID)
KEYS = ["ada", "bob", "cyd"]
BATCHES = [[(1 + at % 2, KEYS[at % 3], at) for at in range(start, start + 4)] for start in (0, 4, 8)]


class Killed(BaseException):
    """The process ends here."""


class Orders(KeyedCoProcessFunction, CheckpointedFunction):
    """State of several kinds, timers, and operator state, which both inputs change."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))
        self.last = runtime_context.get_map_state(MapStateDescriptor("last", Types.INT(), Types.LONG()))

    def initialize_state(self, context: Any) -> None:
        self.elements = context.get_operator_state_store().get_list_state(ListStateDescriptor("count", Types.LONG()))
        self.count = sum(self.elements.get())

    def snapshot_state(self, context: Any) -> None:
        self.elements.update([self.count])

    def process(self, number: int, value: Any, ctx: Any) -> None:
        _, _, at = value
        self.count += 1
        self.total.update((self.total.value() or 0) + at * number)
        self.seen.add(at)
        self.last.put(number, at)
        ctx.timer_service().register_event_time_timer(at + 3)

    def process_element1(self, value: Any, ctx: Any) -> None:
        self.process(1, value, ctx)

    def process_element2(self, value: Any, ctx: Any) -> None:
        self.process(2, value, ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        self.total.update((self.total.value() or 0) + 1000)
        self.last.remove(1)


class Run:
    """One process: it goes on from the last completed checkpoint, of which there is one after each batch."""

    def __init__(self, backend: str, folder: Path, kill_at: int | None = None) -> None:
        root = Location(CountedFileSystem(), "/jobs")
        self.backend, self.folder = backend, folder
        self.kill_at, self.steps = kill_at, 0
        options = CheckpointOptions(incremental=backend != "heap", inline_threshold=0)
        self.directories = CheckpointDirectories(join(root, "checkpoints"), JOB)
        self.coordinator = CheckpointCoordinator(self.directories, [OPERATOR], options)
        self.functions = [Orders() for _ in range(PARALLELISM)]
        self.operators: list[KeyedCoProcessOperator] = []

    def step(self) -> None:
        """Die before this step, where it is the one."""
        self.steps += 1
        if self.steps == self.kill_at:
            raise Killed

    def make_store(self, prefix: int) -> HeapStore | RocksStore:
        if self.backend != "rocksdb":
            return HeapStore(prefix)
        return RocksStore(prefix, self.folder / make_file_name())

    def go(self) -> None:
        try:
            self.open(self.coordinator.recover())
            # The state says how far the input was processed.
            processed = sum(function.count for function in self.functions)
            for batch in BATCHES[processed // len(BATCHES[0]) :]:
                self.process(batch)
                self.checkpoint()
        finally:
            for operator in self.operators:
                operator.close()

    def open(self, latest: Snapshot | None) -> None:
        restored = None if latest is None else RestoredState.of(latest.operator(UID))
        for index, function in enumerate(self.functions):
            operator = KeyedCoProcessOperator(
                function,
                lambda value: value[1],
                lambda value: value[1],
                Types.STRING(),
                task=TaskInfo(index=index, parallelism=PARALLELISM, max_parallelism=MAX_PARALLELISM),
                make_store=self.make_store,
                changelog=ChangelogSettings(None) if self.backend == "changelog" else None,
            )
            operator.open(restored)
            self.operators.append(operator)

    def process(self, batch: list[tuple[int, str, int]]) -> None:
        context = self.operators[0].backend.key_context
        for number, key, at in batch:
            self.step()
            group = context.find_key_group(key, context.encode(key))
            operator = self.operators[compute_operator_index(group, PARALLELISM, MAX_PARALLELISM)]
            (operator.process1 if number == 1 else operator.process2)((number, key, at), at)
        for operator in self.operators:
            self.step()
            operator.advance_watermark(batch[-1][2])

    def checkpoint(self) -> None:
        self.step()
        trigger = self.coordinator.trigger_checkpoint()
        number = trigger.checkpoint_id
        taken = []
        for operator in self.operators:
            self.step()
            shared = None if self.backend == "heap" else trigger.shared
            state = operator.snapshot(
                trigger.directory, make_file_name(), number, file_format=Format.HEAP, shared=shared
            )
            self.step()
            taken.append(TaskCheckpoint(number, OPERATOR.operator_id, state))
        self.coordinator.complete(taken)
        for operator in self.operators:
            self.step()
            operator.notify_checkpoint_complete(number)


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(locations, "_FIRST_WAIT", 0)
    yield
    CountedFileSystem.rule = None


def read_end(run: Run) -> list[Any]:
    """The entries of the newest checkpoint; all that are listed are whole."""
    CountedFileSystem.rule = None
    found, unreadable = find_checkpoints(run.directories.job)
    assert not unreadable
    for each in found:
        assert not missing_files(each), each
    return sorted(dump(found[-1]), key=str)


@cache
def run_undisturbed(backend: str, folder: Path) -> tuple[list[Any], int, int]:
    """The entries at the end, the number of requests and that of steps."""
    empty_counted()
    run = Run(backend, folder)
    run.go()
    requests = len(CountedFileSystem.requests)
    return read_end(run), requests, run.steps


def kill(when: int, after: bool, count: int, operation: str, path: str) -> Fault | None:
    if count != when:
        return None
    if after:
        return LostResponse(Killed())
    raise Killed


# A kill after a request leaves what one before the next request leaves: with every second one, each state of the
# storage would be met once. `tests.checkpoints.test_storage_faults` kills at each request of plain checkpoints, and the
# coordinator is the same with all backends. Opening databases takes long.
EVERY = {"heap": 5, "changelog": 11, "rocksdb": 37}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("backend", EVERY)
def test_a_run_that_is_killed_anywhere_ends_with_the_same_state(backend: str, folder: Path) -> None:
    expected, requests, steps = run_undisturbed(backend, folder)
    assert {each["kind"] for each in expected} == {"keyed", "timer", "operator"}
    kills: list[tuple[int | None, Callable[..., Fault | None] | None]] = [
        *((step, None) for step in range(1, steps + 1, EVERY[backend])),
        *(
            (None, partial(kill, number, after))
            for number in range(0, requests, EVERY[backend])
            for after in (False, True)
        ),
    ]
    died = 0
    for step, rule in kills:
        empty_counted()
        CountedFileSystem.rule = None if rule is None else staticmethod(rule)
        try:
            Run(backend, folder, step).go()
        except Killed:
            died += 1
        CountedFileSystem.rule = None
        again = Run(backend, folder)
        again.go()
        assert read_end(again) == expected, (step, rule)
    # A request whose answer is that there is no such file has no response to lose.
    assert died > len(kills) // 2
