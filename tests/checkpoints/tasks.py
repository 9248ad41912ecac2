"""Tasks and clocks for tests of checkpoints; tasks write real files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_pipelines.checkpoints.completed_checkpoints import CheckpointDirectories, list_files
from state_pipelines.checkpoints.coordinator import (
    CheckpointCoordinator,
    CheckpointedOperator,
    Clock,
    TaskCheckpoint,
    is_full,
    read_task_checkpoint,
    write_task_checkpoint,
)
from state_pipelines.checkpoints.options import CheckpointOptions
from state_pipelines.metadata import KeyGroupRange, SubtaskState, compute_operator_id
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    HandleAndLocalPath,
    IncrementalRemoteKeyedStateHandle,
    RelativeFileStateHandle,
)
from state_pipelines.operations.write.keyed_rewrite import make_file_name
from state_pipelines.storage import create_file, exists, join

if TYPE_CHECKING:
    from state_pipelines.checkpoints.coordinator import CheckpointTrigger
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.storage import Location

JOB = "0123456789abcdef0123456789abcdef"
OPERATOR = CheckpointedOperator(compute_operator_id("sums"), 2, 8, "sums", "Sums")


@dataclass
class Hands:
    """The time of a clock, which moves when a test says, or when something waits."""

    now: int = 0
    step: int = 0
    """Milliseconds that pass with each look."""
    waits: list[int] = field(default_factory=list)

    def read(self) -> int:
        self.now += self.step
        return self.now

    def wait(self, millis: int) -> None:
        self.waits.append(millis)
        self.now += millis

    @property
    def clock(self) -> Clock:
        return Clock(self.read, self.wait)


@dataclass
class Task:
    """A subtask with a table per local name; a checkpoint writes those tables that its base does not have."""

    subtask: int
    tables: list[str] = field(default_factory=lambda: ["000001.sst"])
    written: dict[int, dict[str, FileStateHandle]] = field(default_factory=dict)
    """Tables by checkpoint and local name."""

    def take(self, trigger: CheckpointTrigger, base_id: int | None = None) -> TaskCheckpoint:
        known = {} if base_id is None or is_full(trigger.properties) else self.written.get(base_id, {})
        private = f"{trigger.checkpoint_id}".encode()
        name = make_file_name()
        _write(join(trigger.directory, name), private)
        files: dict[str, FileStateHandle] = {}
        shared, own = [], []
        added = len(private)
        for table in self.tables:
            if trigger.shared is None:
                place = join(trigger.directory, make_file_name())
                _write(place, table.encode())
                own.append(HandleAndLocalPath(table, RelativeFileStateHandle(place.name, len(table))))
                continue
            if table in known:
                files[table] = known[table]
            else:
                place = join(trigger.shared, make_file_name())
                _write(place, table.encode())
                files[table] = FileStateHandle(place.url, len(table))
                added += len(table)
            shared.append(HandleAndLocalPath(table, files[table]))
        self.written[trigger.checkpoint_id] = files
        keyed = IncrementalRemoteKeyedStateHandle(
            checkpoint_id=trigger.checkpoint_id,
            backend_identifier=f"00000000-0000-0000-0000-{self.subtask:012}",
            key_groups=KeyGroupRange(4 * self.subtask, 4),
            meta_data_state=ByteStreamStateHandle("meta", b"meta"),
            shared_state=tuple(shared),
            private_state=(*own, HandleAndLocalPath("MANIFEST", RelativeFileStateHandle(name, len(private)))),
            persisted_size=added,
            state_handle_id=make_file_name(),
        )
        state = SubtaskState(self.subtask, managed_keyed_state=keyed)
        size = len(private) + sum(map(len, self.tables))
        taken = TaskCheckpoint(trigger.checkpoint_id, OPERATOR.operator_id, state, size, added)
        return read_task_checkpoint(write_task_checkpoint(taken))


def _write(place: Location, data: bytes) -> None:
    with create_file(place) as file:
        file.write(data)


@dataclass
class Job:
    """A coordinator with two tasks and a clock."""

    root: Location
    options: CheckpointOptions = field(default_factory=lambda: CheckpointOptions(incremental=True))
    job_id: str = JOB
    hands: Hands = field(default_factory=Hands)
    tasks: tuple[Task, ...] = field(default_factory=lambda: (Task(0), Task(1)))

    def __post_init__(self) -> None:
        directories = CheckpointDirectories(self.root, self.job_id)
        self.coordinator = CheckpointCoordinator(directories, [OPERATOR], self.options, clock=self.hands.clock)

    @property
    def directories(self) -> CheckpointDirectories:
        return self.coordinator.directories

    def answer(self, trigger: CheckpointTrigger) -> list[TaskCheckpoint]:
        """Let the tasks take their snapshots, upon the last checkpoint."""
        base = self.coordinator.completed.latest_checkpoint
        return [task.take(trigger, None if base is None else base.checkpoint_id) for task in self.tasks]

    def complete(self) -> int:
        """Take one checkpoint; return its id."""
        taken = self.answer(self.coordinator.trigger_checkpoint())
        return self.coordinator.complete(taken).checkpoint_id


def missing_files(snapshot: Snapshot) -> list[Location]:
    """Files that a snapshot needs and that are not there."""
    listed = list_files(snapshot.metadata, snapshot.location.directory, snapshot.path_mapping)
    return [file for file in listed if not exists(file)]
