"""The transaction of a new snapshot: its tasks and files, its proof, its publication."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from state_pipelines.metadata import CheckpointMetadata, list_references, read_metadata, with_version, write_metadata
from state_pipelines.metadata.handles import FileStateHandle
from state_pipelines.operations.local_processes import run_tasks
from state_pipelines.operations.proofs import ProofReport, require_proof
from state_pipelines.operations.write.manifest_files import RecordedWork, make_manifest
from state_pipelines.operations.write.own_files import require_own_files
from state_pipelines.operations.write.publication import FileCopy, FileMode, find_other_sizes, plan_copies
from state_pipelines.operations.write.staged_metadata import require_staged
from state_pipelines.snapshot import Snapshot
from state_pipelines.storage import METADATA_FILE, Location, PathMapping, SnapshotLocation, SnapshotWriter
from state_pipelines.storage.files import create_file
from state_pipelines.storage.locations import cut_directory
from state_pipelines.storage.resolution import MANIFEST_FILE
from state_pipelines.storage.snapshot_writer import ScratchDirectory, write_manifest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from types import TracebackType

    from state_pipelines.metadata import CheckpointProperties
    from state_pipelines.operations.local_processes import Runner, Work
    from state_pipelines.snapshot.declarations import Declarations
    from state_pipelines.storage.files import RecordedFile


@dataclass(frozen=True)
class _Staged:
    """A new snapshot that can be published.

    Attributes:
        metadata: its metadata.
        content: their bytes.
        files: what happened to the files of the old snapshot.
        beside: other directories whose files it may name.
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
        is_shared: `run` uses other machines, which must reach the temporary files.

    Attributes:
        copied: files of the old snapshot that were copied or linked.
        copied_bytes: bytes that were copied.

    Raises:
        TargetExistsError: on entering, when the target holds something.
    """

    def __init__(
        self,
        target: Location,
        run: Runner | None = None,
        *,
        scratch: str | None = None,
        is_shared: bool = False,
    ) -> None:
        """Nothing is touched before the block is entered."""
        self.target = target
        self._run = run or run_tasks
        self._files: dict[str, RecordedFile] = {}
        self.copied, self.copied_bytes = 0, 0
        self._scratch, self._is_shared = scratch, is_shared
        self._writer = SnapshotWriter(target)
        self._temporary = ExitStack()
        self._staged: _Staged | None = None

    def __enter__(self) -> SnapshotTransaction:
        """Take the target directory."""
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
        """Directory of temporary files, until `clear`; chosen at the first use."""
        return self._temporary.enter_context(ScratchDirectory(self.target, self._scratch, is_shared=self._is_shared))

    def run(self, tasks: Sequence[Work[Any]], what: str) -> list[Any]:
        """Run tasks, and note the files that they write into `target`, with checksums; results in order.

        Args:
            tasks: the tasks.
            what: error message for a failed task.
        """
        results = []
        for result, files in self._run([RecordedWork(each, self.target) for each in tasks], what):
            self.add_files(files)
            results.append(result)
        return results

    def add_files(self, files: Iterable[RecordedFile]) -> None:
        """Take the checksums of files that others than tasks of `run` have written into `target`."""
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

        What a reader will find in the new `_metadata` is compared with `metadata`.

        Args:
            metadata: those of the new snapshot, with the new files in place.
            base: the old snapshot, whose files the metadata still name; None where all files are new.
            properties: see `plan_copies`.
            files: see `plan_copies`.
            verify: see `plan_copies`.
            declarations: of the new snapshot; default those of the old one.
            beside: other directories whose files the new snapshot may name, such as those that the checkpoints of a
                job share; see `require_own_files`.
            changed: ids of the operators that may differ from those of the old snapshot; default any.

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
            # Files that stay where they are were in reach of the old snapshot.
            handles = (each.handle for each in list_references(metadata))
            stayed = (cut_directory(each.path) for each in handles if isinstance(each, FileStateHandle))
            mapping = base.path_mapping.allow(stayed)
        mapping = mapping.allow(each.url for each in beside)
        location, content = SnapshotLocation(self.target, self._writer.locate(METADATA_FILE)), write_metadata(metadata)
        # What a reader will find, not the plan.
        metadata = read_metadata(content, str(location.metadata))
        staged = Snapshot(location, metadata, mapping, declarations)
        require_staged(staged, expected, base, copies, properties, changed)
        self._staged = _Staged(metadata, content, files, beside)
        return staged

    def _copy(self, copies: Sequence[FileCopy]) -> int:
        """Copy files; bytes written."""
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
            proof: of the new snapshot; None where none was asked for.
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
        # Before the snapshot is published, so that a failed commit has published nothing.
        self.clear()
        if staged.files is not FileMode.REFERENCE:
            require_own_files(staged.metadata, self.target, staged.beside)
        self._writer.require_taken()
        manifest = make_manifest(staged.content, staged.metadata, self.target, self._files)
        with create_file(self._writer.locate(MANIFEST_FILE), replace=True) as file:
            file.write(write_manifest(manifest))
        self._writer.publish(staged.content)
