"""The transaction of a new snapshot: its tasks and files, its proof, its publication and its manifest.

A proof counts the records of the source without clipping: nothing that its handles hold may be left out. A RocksDB
database that several subtasks share is read once per subtask, clipped to the key groups of each. Its records are
counted as they are stored too, once, so that a wrong range is found. Other files are never clipped.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import at
from state_pipelines.keyed.digests import RecordDigest, sum_digests
from state_pipelines.keyed.keyed_file import digest_states
from state_pipelines.metadata import CheckpointMetadata, list_references, read_metadata, with_version, write_metadata
from state_pipelines.metadata.handles import FileStateHandle, RelativeFileStateHandle, SegmentFileStateHandle
from state_pipelines.operations.local_processes import count_kernel_threads, run_tasks
from state_pipelines.operations.proofs import (
    AFTER,
    DESCRIPTIONS,
    EXPECTED,
    SOURCE_WHOLE,
    DifferingRecord,
    ProofCheck,
    ProofReport,
    RecordCounts,
    require_proof,
)
from state_pipelines.operations.write.publication import (
    FileCopy,
    FileMode,
    find_other_sizes,
    plan_copies,
    require_own_files,
    require_staged,
)
from state_pipelines.snapshot import Snapshot
from state_pipelines.storage import METADATA_FILE, Location, PathMapping, SnapshotLocation, SnapshotWriter
from state_pipelines.storage.files import RecordedFile, compute_checksum, create_file, list_directory, record_files
from state_pipelines.storage.locations import cut_directory
from state_pipelines.storage.resolution import MANIFEST_FILE
from state_pipelines.storage.snapshot_writer import Manifest, ScratchDirectory, write_manifest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from types import TracebackType

    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.metadata import CheckpointProperties
    from state_pipelines.operations.local_processes import Runner, Work
    from state_pipelines.snapshot import Operator
    from state_pipelines.snapshot.declarations import Declarations


@dataclass(frozen=True)
class RecordedWork:
    """A task that also returns the files that it has written.

    Attributes:
        work: the task.
        directory: directory whose new files are recorded.
    """

    work: Work[Any]
    directory: Location

    @property
    def in_flight(self) -> int:
        """Number of such tasks to run concurrently in one process: that of the task; see `local_processes.Work`."""
        return getattr(self.work, "in_flight", 1)

    @property
    def threads(self) -> int:
        """Number of such tasks that can run in threads: that of the task; see `local_processes.Work`."""
        return getattr(self.work, "threads", 1)

    def run(self) -> tuple[Any, tuple[RecordedFile, ...]]:
        """Run the task; return its result and the files that it has written into the directory."""
        with record_files(self.directory) as recorder:
            result = self.work.run()
        return result, tuple(recorder.files.values())


def make_manifest(
    content: bytes,
    metadata: CheckpointMetadata,
    directory: Location,
    written: Mapping[str, RecordedFile],
) -> Manifest:
    """Make the manifest of a snapshot whose data files are complete; no file is read.

    Files whose bytes did not pass through this package (they were linked, or copied by an object store) are recorded
    without a checksum.

    Args:
        content: the bytes of `_metadata`.
        metadata: the decoded `_metadata`.
        directory: directory of the snapshot.
        written: files whose checksums were computed while they were written, by name.

    Raises:
        StateError: the directory cannot be listed.
    """
    names: dict[str, None] = {}
    elsewhere: dict[str, int] = {}
    for handle in (each.handle for each in list_references(metadata)):
        match handle:
            case RelativeFileStateHandle(relative_path=name):
                names[name] = None
            case SegmentFileStateHandle(path=path, start=start, size=size):
                elsewhere[path] = max(elsewhere.get(path, 0), start + size)
            case FileStateHandle(path=path, size=size):
                elsewhere[path] = max(elsewhere.get(path, 0), size)
    sizes = {each.location.name: each.size for each in list_directory(directory)} if names else {}
    files = []
    # If an unverified copy has failed without an error, its file is missing. The manifest leaves it out; `verify`
    # reports it, since `_metadata` names it.
    for name in (each for each in names if each in sizes):
        known = written.get(name)
        files.append(known if known is not None and known.size == sizes[name] else RecordedFile(name, sizes[name]))
    return Manifest(
        RecordedFile(METADATA_FILE, len(content), compute_checksum([content])),
        tuple(files),
        tuple(RecordedFile(path, size) for path, size in elsewhere.items()),
    )


@dataclass(frozen=True)
class _Staged:
    """A new snapshot that can be published.

    Attributes:
        metadata: its metadata.
        content: the bytes of its `_metadata`.
        files: whether files of the old snapshot were copied, linked or referenced.
        beside: other directories whose files the metadata may name.
    """

    metadata: CheckpointMetadata
    content: bytes
    files: FileMode
    beside: Collection[Location]


class SnapshotTransaction:
    """A new snapshot that appears as a whole or not at all: write, `stage`, prove, `commit`.

    A context manager. Tasks write data files into `target` and temporary files into `scratch`; `stage` takes over the
    files of the old snapshot; `commit` refuses a failed proof, removes the temporary files and writes the manifest,
    then `_metadata`.
    Leaving the block without `commit`, or through an exception, removes everything.

    Args:
        target: a directory that does not exist yet or is empty.
        run: runs tasks and returns their results in order; default one after the other in this process.
        scratch: directory (path or URL) of temporary files; see `ScratchDirectory` for the default.
        is_shared: whether `run` uses other machines, which must reach the temporary files.

    Attributes:
        copied: files of the old snapshot that were copied or linked.
        copied_bytes: bytes that were copied.

    Raises:
        TargetExistsError: when the `with` block is entered: the target is not empty.
    """

    def __init__(
        self,
        target: Location,
        run: Runner | None = None,
        *,
        scratch: str | None = None,
        is_shared: bool = False,
    ) -> None:
        """Keep the arguments; nothing is created before the `with` block is entered."""
        self.target = target
        self._run = run or run_tasks
        self._files: dict[str, RecordedFile] = {}
        self.copied, self.copied_bytes = 0, 0
        self._scratch, self._is_shared = scratch, is_shared
        self._writer = SnapshotWriter(target)
        self._temporary = ExitStack()
        self._staged: _Staged | None = None

    def __enter__(self) -> SnapshotTransaction:
        """Reserve the target directory for this transaction."""
        self._writer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove everything unless the snapshot was published."""
        try:
            self._temporary.__exit__(kind, error, traceback)
        finally:
            self._writer.__exit__(kind, error, traceback)

    @cached_property
    def scratch(self) -> Location:
        """Directory of temporary files; it is chosen at the first use, and removed by `clear`."""
        return self._temporary.enter_context(ScratchDirectory(self.target, self._scratch, is_shared=self._is_shared))

    def run(self, tasks: Sequence[Work[Any]], what: str) -> list[Any]:
        """Run tasks, and record the files that they write into `target`, with checksums; return the results in order.

        Args:
            tasks: the tasks.
            what: beginning of the error message if a worker process or Spark fails.
        """
        results = []
        for result, files in self._run([RecordedWork(each, self.target) for each in tasks], what):
            self.add_files(files)
            results.append(result)
        return results

    def add_files(self, files: Iterable[RecordedFile]) -> None:
        """Record files, with checksums, that were written into `target` by others than the tasks of `run`."""
        found = {each.name: each for each in files}
        self._files |= found
        self._writer.written.update(found)

    def stage(
        self,
        metadata: CheckpointMetadata,
        base: Snapshot | None,
        properties: CheckpointProperties | None = None,
        *,
        files: FileMode = FileMode.COPY,
        verify: bool = False,
        declarations: Declarations | None = None,
        beside: Collection[Location] = frozenset(),
        changed: Collection[bytes] | None = None,
    ) -> Snapshot:
        """Take over the files of the old snapshot; return the new one, which is not published yet.

        The new `_metadata` is decoded again, as a reader will do, and compared with `metadata`.

        Args:
            metadata: metadata of the new snapshot, with handles of the new files.
            base: the old snapshot, whose files the metadata still name; None if all files are new.
            properties: see `plan_copies`.
            files: see `plan_copies`.
            verify: see `plan_copies`.
            declarations: declarations for the new snapshot; default those of the old one.
            beside: other directories whose files the new snapshot may name, such as those that the checkpoints of a
                job share; see `require_own_files`.
            changed: ids of the operators that may differ from those of the old snapshot; default all.

        Raises:
            ProofError: the new `_metadata` are not the expected ones.
            UsageError: a file cannot be linked into the target.
            StateError: a file cannot be copied.
        """
        mapping, expected, copies = PathMapping(), metadata, list[FileCopy]()
        if base is None:
            metadata = with_version(metadata, metadata.version, properties)
            expected = metadata
        else:
            metadata, copies = plan_copies(base, metadata, self.target, properties, files=files, verify=verify)
            self.copied, self.copied_bytes = len(copies), self._copy(copies)
            declarations = declarations or base.declarations
            # Files that the new snapshot references were allowed for the old one, so they are allowed for the new one.
            handles = (each.handle for each in list_references(metadata))
            stayed = (cut_directory(each.path) for each in handles if isinstance(each, FileStateHandle))
            mapping = base.path_mapping.allow(stayed)
        mapping = mapping.allow(each.url for each in beside)
        location, content = SnapshotLocation(self.target, self._writer.locate(METADATA_FILE)), write_metadata(metadata)
        # Compare the metadata that a reader will decode, not the objects that were written.
        metadata = read_metadata(content, str(location.metadata))
        staged = Snapshot(location, metadata, mapping, declarations)
        require_staged(staged, expected, base, copies, properties, changed)
        self._staged = _Staged(metadata, content, files, beside)
        return staged

    def _copy(self, copies: Sequence[FileCopy]) -> int:
        """Copy files, and repeat copies of a wrong size; return the bytes written."""
        what = "files cannot be copied"
        size: int = sum(self.run([replace(each, measure=False) for each in copies], what))
        others = find_other_sizes(copies, self.target)
        if others:
            size += sum(self.run(others, what)) - sum(each.source.size for each in others)
        return size

    def clear(self) -> None:
        """Remove the temporary files."""
        self._temporary.close()

    def commit(self, proof: ProofReport | None = None, *, differences: Sequence[str] = (), hint: str = "") -> None:
        """Publish what was staged.

        Args:
            proof: proof of the new snapshot; None if none was requested.
            differences: see `require_proof`.
            hint: see `require_proof`.

        Raises:
            ProofError: a check of the proof does not hold, or a handle names a file that does not belong to the
                snapshot; nothing is published.
            TargetExistsError: another process has published into the target meanwhile.
        """
        assert self._staged is not None, "nothing was staged"
        staged = self._staged
        if proof is not None:
            require_proof(proof, differences=differences, hint=hint)
        # Remove temporary files before the snapshot is published: if that fails, nothing is published.
        self.clear()
        if staged.files is not FileMode.REFERENCE:
            require_own_files(staged.metadata, self.target, staged.beside)
        self._writer.require_taken()
        manifest = make_manifest(staged.content, staged.metadata, self.target, self._files)
        with create_file(self._writer.locate(MANIFEST_FILE), replace=True) as file:
            file.write(write_manifest(manifest))
        self._writer.publish(staged.content)


@dataclass(frozen=True)
class CountStates:
    """Task that computes digests of all states of one file; can be sent to other processes."""

    operator: str
    file: KeyedFile

    @property
    def threads(self) -> int:
        """Number of these tasks that can run concurrently in threads; see `local_processes.Work`."""
        return count_kernel_threads([self.file])

    def run(self) -> dict[str, RecordDigest]:
        """Read the file; return the digests by name of the state.

        Raises:
            StateError: the file cannot be read.
        """
        with at(operator=self.operator):
            return digest_states(self.file, self.file.key_groups)


def check_source_whole(operators: Sequence[Operator], run: Runner) -> ProofCheck | None:
    """Check that subtasks together read all records of the databases that they share.

    After a change of parallelism, several handles may refer to one database, and each subtask reads only the key groups
    in its range.

    Args:
        operators: operators of the old snapshot.
        run: runs tasks and gives their results in order.

    Returns:
        The check; None if each subtask reads its files completely.

    Raises:
        StateError: a file cannot be read.
    """
    compared: list[tuple[Operator, tuple[KeyedFile, ...], tuple[KeyedFile, ...]]] = []
    for operator in operators:
        read, stored = tuple(file for _, file in operator.keyed_files), operator.files.open_stored()
        if len(read) != len(stored) or any(one != other for one, other in zip(read, stored, strict=True)):
            compared.append((operator, read, stored))
    if not compared:
        return None
    tasks = [CountStates(operator.label, file) for operator, *sides in compared for files in sides for file in files]
    found = iter(run(tasks, "the proof cannot read the old state"))
    total, lost, rows = 0, 0, list[DifferingRecord]()
    for operator, read, stored in compared:
        sums = [sum_digests(next(found) for _ in files) for files in (read, stored)]
        for state in sums[1]:
            one, other = sums[0].get(state, RecordDigest()), sums[1][state]
            total += other.records
            if one != other:
                lost += abs(other.records - one.records)
                values = {AFTER: f"{one.records:,} records", EXPECTED: f"{other.records:,} records"}
                rows.append(DifferingRecord(state, {"operator": operator.label}, values))
    observed = f"{total - lost:,} of {total:,} records of databases that subtasks share"
    return ProofCheck(
        SOURCE_WHOLE,
        not rows,
        DESCRIPTIONS[SOURCE_WHOLE],
        "as many records as stored",
        observed,
        RecordCounts(total, missing=lost),
        tuple(rows),
    )
