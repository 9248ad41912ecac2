"""A tree of snapshots of three jobs: incremental checkpoints with shared files, lineage by CLAIM, and planted orphans.

Every `_metadata` and every file comes from one small checkpoint that Flink wrote, so that each snapshot can be read
whole and restored: its SST files become shared files, which live for 3 to 200 checkpoints.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from state_pipelines.metadata import (
    CheckpointMetadata,
    list_references,
    read_metadata,
    replace_stream_handles,
    write_metadata,
)
from state_pipelines.metadata.handles import FileStateHandle, IncrementalRemoteKeyedStateHandle, RelativeFileStateHandle
from state_pipelines.metadata.streams import StreamReference, StreamRole
from state_pipelines.storage import METADATA_FILE
from tests.snapshots import OWN

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.metadata.handles import StreamStateHandle

BASE = next(case for case in OWN if case.name == "types-2.2-rocksdb-full")
LIFETIMES = (3, 10, 20, 50, 200)
"""For how many checkpoints a shared file lives; the SST files of the base take turns."""


@dataclass(frozen=True)
class TreeSnapshot:
    """A snapshot of the tree.

    Attributes:
        path: its directory.
        job: name of its job; empty for a savepoint that no job of the tree has restored.
        number: of the checkpoint.
        files: every file that it needs, its own and those of others.
        own: the files in its directory, with `_metadata`.
    """

    path: Path
    job: str
    number: int
    files: frozenset[Path]
    own: frozenset[Path]


@dataclass
class Tree:
    """The tree and what is known of it.

    Attributes:
        checkpoints: root of checkpoints.
        savepoints: root of savepoints.
        snapshots: by job, and in it by number.
        orphans: planted files that nothing needs, older than any floor.
        young: planted files that nothing needs yet, of a job that may be running.
        foreign: files with names that Flink does not write.
    """

    checkpoints: Path
    savepoints: Path
    snapshots: list[TreeSnapshot] = field(default_factory=list)
    orphans: set[Path] = field(default_factory=set)
    young: set[Path] = field(default_factory=set)
    foreign: set[Path] = field(default_factory=set)

    @property
    def roots(self) -> list[str]:
        """Both roots."""
        return [str(self.checkpoints), str(self.savepoints)]

    def of(self, job: str) -> list[TreeSnapshot]:
        """The checkpoints of a job, the oldest first."""
        return [each for each in self.snapshots if each.job == job]

    def files(self) -> set[Path]:
        """Every file that is there now."""
        return {path for root in (self.checkpoints, self.savepoints) for path in root.rglob("*") if path.is_file()}


def identify(*words: object) -> str:
    """A UUID that depends only on the words."""
    return str(uuid.UUID(hashlib.md5("/".join(map(str, words)).encode()).hexdigest()))


def job_directory(tree: Tree, job: str) -> Path:
    """The directory of a job, named by its id."""
    return tree.checkpoints / hashlib.md5(job.encode()).hexdigest()


def make_tree(directory: Path, *, counts: tuple[int, int, int] = (500, 300, 196), now: datetime | None = None) -> Tree:
    """Write the tree.

    Job *first* starts empty. Job *second* has restored the last checkpoint of *first* by CLAIM and still references its
    shared files. Job *third* has restored a native savepoint by CLAIM and still references the files in it. Three more
    savepoints belong to no job.

    Args:
        directory: gets two roots.
        counts: number of checkpoints of each job.
        now: all is older than five days at this time, except what is meant to be young.
    """
    now = now or datetime.now(UTC)
    tree = Tree(directory / "checkpoints", directory / "savepoints")
    builder = _Builder(tree)
    first, second, third = counts
    hour = timedelta(hours=1)
    # The last checkpoint of each job is six days old.
    end = now - timedelta(days=6)
    for number in range(1, first + 1):
        builder.add_checkpoint("first", number, end - (second + first - number) * hour)
    for number in range(first + 1, first + second + 1):
        builder.add_checkpoint("second", number, end - (second + first - number) * hour, claimed=("first", first))
    savepoint = builder.add_savepoint("claimed", end - (third + 1) * hour)
    for number in range(1, third + 1):
        builder.add_checkpoint("third", number, end - (third - number) * hour, savepoint=savepoint)
    for name in ("one", "two", "three"):
        builder.add_savepoint(name, end - 100 * hour)
    builder.plant(end - 24 * 14 * hour, now)
    return tree


def write_checkpoint(tree: Tree, job: str, number: int, time: datetime) -> TreeSnapshot:
    """Add a checkpoint to a tree, as the running job would."""
    _Builder(tree).add_checkpoint(job, number, time)
    return tree.snapshots[-1]


def _split_sst_files(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """The metadata with SST files as shared state, as an incremental checkpoint has them."""
    operators = []
    for operator in metadata.operator_states:
        subtasks = []
        for subtask in operator.subtasks:
            handle = subtask.managed_keyed_state
            if isinstance(handle, IncrementalRemoteKeyedStateHandle):
                shared = tuple(file for file in handle.private_state if file.local_path.endswith(".sst"))
                private = tuple(file for file in handle.private_state if not file.local_path.endswith(".sst"))
                subtask = replace(
                    subtask, managed_keyed_state=replace(handle, shared_state=shared, private_state=private)
                )
            subtasks.append(subtask)
        operators.append(replace(operator, subtasks=tuple(subtasks)))
    return replace(metadata, operator_states=tuple(operators))


class _Builder:
    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.native = read_metadata((BASE.path / "_metadata").read_bytes())
        self.incremental = _split_sst_files(self.native)
        self.content = {file.name: file.read_bytes() for file in BASE.path.iterdir()}
        self.sst_files = sorted(
            {
                reference.handle.relative_path
                for reference in list_references(self.incremental)
                if reference.role is StreamRole.SHARED and isinstance(reference.handle, RelativeFileStateHandle)
            }
        )
        self.shared: dict[tuple[str, str, int], Path] = {}

    def add_checkpoint(
        self,
        job: str,
        number: int,
        time: datetime,
        *,
        claimed: tuple[str, int] | None = None,
        savepoint: TreeSnapshot | None = None,
    ) -> None:
        directory = job_directory(self.tree, job) / f"chk-{number}"
        directory.mkdir(parents=True)
        (directory.parent / "taskowned").mkdir(exist_ok=True)
        own, others = set(), set()

        def write(reference: StreamReference) -> StreamStateHandle:
            handle = reference.handle
            if not isinstance(handle, RelativeFileStateHandle):
                return handle
            name = handle.relative_path
            if reference.role is StreamRole.SHARED:
                path = self._share(job, number, name, time, claimed, savepoint)
                others.add(path)
                return FileStateHandle(f"file:{path}", handle.size)
            path = directory / identify(job, number, name)
            self._write(path, self.content[name], time)
            own.add(path)
            return replace(handle, relative_path=path.name)

        metadata = replace(replace_stream_handles(self.incremental, write), checkpoint_id=number)
        self._write(directory / "_metadata", write_metadata(metadata), time)
        own.add(directory / "_metadata")
        self.tree.snapshots.append(TreeSnapshot(directory, job, number, frozenset(own | others), frozenset(own)))

    def add_savepoint(self, name: str, time: datetime) -> TreeSnapshot:
        text = hashlib.md5(name.encode()).hexdigest()
        directory = self.tree.savepoints / f"savepoint-{text[:6]}-{text[6:18]}"
        directory.mkdir(parents=True)
        for file, content in self.content.items():
            self._write(directory / file, content, time)
        own = frozenset(directory / file for file in self.content)
        snapshot = TreeSnapshot(directory, "", self.native.checkpoint_id, own, own)
        self.tree.snapshots.append(snapshot)
        return snapshot

    def plant(self, old: datetime, now: datetime) -> None:
        checkpoints, savepoints = self.tree.checkpoints, self.tree.savepoints
        for job in ("first", "second", "third"):
            directory = job_directory(self.tree, job)
            orphans = [directory / "shared" / identify(job, "orphan", number) for number in range(5)]
            orphans += [directory / "taskowned" / identify(job, "owned", number) for number in range(2)]
            orphans += [directory / "chk-0" / identify(job, "incomplete", number) for number in range(3)]
            later = [directory / "chk-9000" / identify(job, "later", number) for number in range(2)]
            later.append(directory / "chk-9000" / f".{METADATA_FILE}.inprogress.{identify(job, 'metadata')}")
            if job == "first":
                # A job with young files may be running, and a checkpoint above its newest one may be in progress.
                self.tree.young.add(directory / "shared" / identify(job, "young"))
                self.tree.young.update(later)
            else:
                orphans += later
            self.tree.orphans.update(orphans)
            self.tree.foreign.add(directory / "shared" / "notes.txt")
        abandoned = savepoints / "savepoint-0badc0-0123456789ab"
        self.tree.orphans.update(abandoned / identify("abandoned", number) for number in range(4))
        self.tree.foreign |= {savepoints / "README.txt", checkpoints / "backup" / "data.bin"}
        for path in self.tree.orphans | self.tree.foreign:
            self._write(path, b"planted " + path.name.encode(), old)
        for path in self.tree.young:
            self._write(path, b"young", now)

    def _share(
        self,
        job: str,
        number: int,
        name: str,
        time: datetime,
        claimed: tuple[str, int] | None,
        savepoint: TreeSnapshot | None,
    ) -> Path:
        index = self.sst_files.index(name)
        version = number // LIFETIMES[index % len(LIFETIMES)]
        if claimed is not None and version == claimed[1] // LIFETIMES[index % len(LIFETIMES)]:
            return self.shared[claimed[0], name, version]
        if savepoint is not None and version == 0:
            return savepoint.path / name
        path = self.shared.get((job, name, version))
        if path is None:
            path = job_directory(self.tree, job) / "shared" / identify(job, "shared", name, version)
            if not path.exists():
                self._write(path, self.content[name], time)
            self.shared[job, name, version] = path
        return path

    def _write(self, path: Path, content: bytes, time: datetime) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (time.timestamp(), time.timestamp()))
