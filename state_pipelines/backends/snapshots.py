"""Snapshots of a keyed state backend: full in every format that Flink restores, incremental, and local backups.

* `write_full_snapshot`: all keyed state of a subtask, as a `KeyedSnapshot`.
* `IncrementalSnapshots`: of a RocksDB store; tables that an earlier snapshot has uploaded are referenced. Source:
  `RocksIncrementalSnapshotStrategy`, `RocksDBIncrementalCheckpointUtils`, `RocksDBStateUploader`.
* `restore_incremental`: a RocksDB store restored from incremental snapshots; the tables of one are taken over as files.
  Source: `RocksDBIncrementalRestoreOperation`, `RocksDBStateDownloader`, `RocksDBIncrementalCheckpointUtils`.
* `LocalBackup`: the files of the last snapshots of a subtask, on a disk of the worker that has written them. A subtask
  that is restored on the same worker takes its files from there and downloads nothing. Source:
  `TaskLocalStateStoreImpl`, `LocalSnapshotDirectoryProviderImpl`.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import uuid
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Writer
from state_pipelines.errors import FormatError, StateError, UnsupportedError, UsageError, Where
from state_pipelines.keyed.header import write_keyed_header
from state_pipelines.metadata.handles import (
    FileStateHandle,
    HandleAndLocalPath,
    IncrementalRemoteKeyedStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
)
from state_pipelines.metadata.streams import copy_stream, list_keyed_streams, locate_file
from state_pipelines.operations.convert import SubtaskConversion
from state_pipelines.rocksdb.writer import list_files
from state_pipelines.storage import join, resolve
from state_pipelines.storage.files import copy_file, remove_file
from state_pipelines.storage.locations import Threads, is_plain_name
from state_pipelines.storage.reading import find_copy, link_copy, remove_other_copies, take_copy, write_copies
from state_pipelines.storage.snapshot_writer import can_link, link_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state_pipelines.backends.keyed_backend import KeyedStateBackend
    from state_pipelines.backends.rocksdb_store import RocksStore
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.metadata.handles import KeyedStateHandle, KeyGroupRange, StreamStateHandle
    from state_pipelines.operations.write.keyed_rewrite import Format
    from state_pipelines.snapshot.handle_readers import HandleReader
    from state_pipelines.storage import Location


@dataclass(frozen=True)
class KeyedSnapshot:
    """Files of one snapshot of one subtask.

    Attributes:
        handle: handle for `_metadata`; None when the backend has no state.
        size: bytes written.
    """

    handle: KeyedStateHandle | None
    size: int


def write_full_snapshot(
    backend: KeyedStateBackend,
    file_format: Format,
    directory: Location,
    name: str,
    checkpoint_id: int,
    *,
    compressed: bool = False,
) -> KeyedSnapshot:
    """Write all keyed state of a subtask.

    Args:
        backend: the live state; it must not change meanwhile.
        file_format: canonical, heap or rocksdb.
        directory: directory of the snapshot.
        name: name of the new file, or the prefix of the names of several files; leftovers are replaced.
        checkpoint_id: id of the snapshot.
        compressed: compress key groups (canonical and heap; RocksDB compresses its own blocks).

    Returns:
        The handle, whose files are relative to the directory.

    Raises:
        UnsupportedError: a record cannot be written in the format.
        StateError: a file cannot be written.
    """
    if not backend.states:
        return KeyedSnapshot(None, 0)
    file = backend.as_file(compressed=compressed)
    task = SubtaskConversion(
        operator_id=b"",
        operator="",
        subtask=0,
        source=file,
        header=file.header,
        format=file_format,
        key_groups=backend.key_groups,
        target=directory,
        name=name,
        checkpoint_id=checkpoint_id,
    )
    return KeyedSnapshot(*task.write())


TABLE = ".sst"

HEADER = "header"
"""Local file with the serializers of the states, which RocksDB does not know."""


class IncrementalSnapshots:
    """Snapshots of one backend, each based on the last one that was completed.

    Args:
        backend: the live state.
        store: store that holds the entries of the backend.
        restored: the handle whose files the store took over; later snapshots reference its tables.
        backup: keeps the files of the last snapshots on this machine; None keeps none.

    Attributes:
        identifier: UUID text of the backend; in handles with the same identifier, equal names mean the same table.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        store: RocksStore,
        restored: IncrementalRemoteKeyedStateHandle | None = None,
        backup: LocalBackup | None = None,
    ) -> None:
        self._backend = backend
        self._store = store
        self._backup = backup
        self.identifier = str(uuid.uuid4()) if restored is None else restored.backend_identifier
        self._uploaded: dict[int, dict[str, StreamStateHandle]] = {}
        self._completed = -1
        if restored is not None:
            self._completed = restored.checkpoint_id
            # A table with a relative path, as in native savepoints, belongs to the restored snapshot alone: no later
            # snapshot may reference it.
            self._uploaded[self._completed] = {
                each.local_path: each.handle
                for each in restored.shared_state
                if not isinstance(each.handle, RelativeFileStateHandle)
            }

    def write(self, checkpoint_id: int, directory: Location, shared: Location, *, full: bool = False) -> KeyedSnapshot:
        """Upload the tables that the last completed snapshot does not have, and the other files of the database.

        All files are uploaded when the handle is returned. If an upload fails, the files of this call are removed.

        Args:
            checkpoint_id: id of the snapshot; ascending.
            directory: directory of the snapshot, for the files that only it uses; handles name them relative to it.
            shared: directory of the files that later snapshots use too; handles name them by their URL.
            full: upload all tables again, as after a restore without claim.

        Returns:
            The handle, and the bytes uploaded; no handle when the backend has no state.

        Raises:
            StateError: a file cannot be written.
        """
        if not self._backend.states:
            return KeyedSnapshot(None, 0)
        base = {} if full else self._uploaded.get(self._completed, {})
        local = self._store.directory / f"chk-{checkpoint_id}"
        shutil.rmtree(local, ignore_errors=True)
        new: list[Location] = []
        try:
            self._store.checkpoint(local)
            header = local / HEADER
            header.write_bytes(self._make_header())
            files = list_files(local)
            tables = [path for path in files if path.suffix == TABLE]
            missing = [path for path in tables if path.name not in base]
            private = [path for path in files if path.suffix != TABLE]
            targets = [join(shared, str(uuid.uuid4())) for _ in missing]
            own = [join(directory, str(uuid.uuid4())) for _ in private]
            meta = join(directory, str(uuid.uuid4()))
            new += [*targets, *own, meta]
            *sizes, header_size = self._upload([*missing, *private, header], [*targets, *own, meta])
            uploaded = {
                path.name: FileStateHandle(target.url, size)
                for path, target, size in zip(missing, targets, sizes, strict=False)
            }
            known = {path.name: uploaded.get(path.name) or base[path.name] for path in tables}
            if self._backup is not None:
                copies = {target.url: path for path, target in zip([*private, header], [*own, meta], strict=True)}
                for path in tables:
                    table = known[path.name]
                    if isinstance(table, FileStateHandle):
                        copies[resolve(table.path).url] = path
                self._backup.keep(checkpoint_id, copies, self._completed)
        except BaseException:
            for location in new:
                with suppress(StateError):
                    remove_file(location)
            raise
        finally:
            shutil.rmtree(local, ignore_errors=True)
        self._uploaded[checkpoint_id] = known
        handle = IncrementalRemoteKeyedStateHandle(
            checkpoint_id=checkpoint_id,
            backend_identifier=self.identifier,
            key_groups=self._backend.key_groups,
            meta_data_state=RelativeFileStateHandle(meta.name, header_size),
            shared_state=tuple(HandleAndLocalPath(name, each) for name, each in known.items()),
            private_state=tuple(
                HandleAndLocalPath(path.name, RelativeFileStateHandle(target.name, size))
                for path, target, size in zip(private, own, sizes[len(missing) :], strict=True)
            ),
            persisted_size=sum(sizes) + header_size,
            state_handle_id=str(uuid.uuid4()),
        )
        return KeyedSnapshot(handle, sum(sizes) + header_size)

    def complete(self, checkpoint_id: int) -> None:
        """Note that a snapshot was completed: later ones reference its files (`notifyCheckpointComplete`)."""
        if checkpoint_id in self._uploaded and checkpoint_id > self._completed:
            self._completed = checkpoint_id
            self._uploaded = {each: known for each, known in self._uploaded.items() if each >= checkpoint_id}

    def abort(self, checkpoint_id: int) -> None:
        """Forget a snapshot that was not completed; the shared-file registry removes its files."""
        if checkpoint_id != self._completed:
            self._uploaded.pop(checkpoint_id, None)

    def _upload(self, paths: Sequence[Path], targets: Sequence[Location]) -> list[int]:
        with Threads(max(1, self._store.options.transfer_threads)) as pool:
            # Threads run in copies of this context, whose variables record and copy new files (`storage.files`).
            # Names are random: `replace` saves the request that looks for an existing file.
            upload = partial(copy_file, replace=True)
            uploads = [
                pool.submit(copy_context().run, upload, resolve(str(path)), target)
                for path, target in zip(paths, targets, strict=True)
            ]
            return [each.result() for each in uploads]

    def _make_header(self) -> bytes:
        writer = Writer()
        # RocksDB compresses its own blocks.
        write_keyed_header(writer, replace(self._backend.as_file().header, compressed=False))
        return writer.getvalue()


def restore_incremental(
    backend: KeyedStateBackend,
    store: RocksStore,
    handles: Sequence[IncrementalRemoteKeyedStateHandle],
    reader: HandleReader,
    context: RecordContext | None = None,
    backup: LocalBackup | None = None,
) -> IncrementalSnapshots:
    """Restore the key groups of a subtask; to be called before any state is registered.

    A single handle with the key groups of the subtask is taken over as it is: its tables are linked, or copied from
    another volume or storage, and later snapshots reference them. Otherwise the database of the handle with the most
    key groups of the subtask is taken over and clipped by range tombstones, and the records of the other handles are
    written to it. A handle is not taken over if the subtask has a smaller fraction of its key groups than
    `state.backend.rocksdb.restore-overlap-fraction-threshold`; if that excludes all handles, all are restored by
    records.

    Args:
        backend: backend of the subtask.
        store: store that holds the entries of the backend.
        handles: handles of any old subtasks; handles without key groups of the subtask are ignored.
        reader: reader of the handles of the snapshot.
        context: properties of the old operator that are needed to read records; by default those of the backend, which
            fit if the Flink release is the same.
        backup: has the files of the last snapshots on this machine, and keeps the files of the next ones.

    Returns:
        The snapshots of the backend; they reference the tables of a handle that was taken over as it is.

    Raises:
        UsageError: a state is registered already.
        StateMigrationError: the new key serializer is not compatible with the one of the old keys.
        UnsupportedError: the database is one of ForSt.
        StateError: a file cannot be read.
    """
    wanted = [each for each in handles if each.key_groups.intersect(backend.key_groups).number]
    if not wanted:
        return IncrementalSnapshots(backend, store, backup=backup)
    context = context or backend.context
    if backup is not None:
        reader.copies |= backup.find(wanted, reader)
    base = _choose_base(wanted, backend.key_groups, store.options.restore_overlap_fraction_threshold)
    if base is None:
        backend.restore([_open(reader, each, context) for each in wanted])
        return IncrementalSnapshots(backend, store, backup=backup)
    file = _open(reader, base, context)
    backend.take_states(file)
    _take_files(store, base, file, reader)
    if len(wanted) == 1 and base.key_groups == backend.key_groups:
        # A rescale can leave other key groups in the tables of a handle.
        store.clip(backend.key_groups)
        return IncrementalSnapshots(backend, store, _locate_tables(base, reader), backup)
    store.clip(base.key_groups.intersect(backend.key_groups))
    backend.restore([_open(reader, each, context) for each in wanted if each is not base])
    return IncrementalSnapshots(backend, store, backup=backup)


def _choose_base(
    handles: Sequence[IncrementalRemoteKeyedStateHandle], key_groups: KeyGroupRange, threshold: float
) -> IncrementalRemoteKeyedStateHandle | None:
    """The handle whose database is taken over (`RocksDBIncrementalCheckpointUtils.chooseTheBestStateHandleForInitial`).

    At least the fraction `threshold` of its key groups must be in `key_groups`.
    """

    def score(handle: IncrementalRemoteKeyedStateHandle) -> tuple[int, float]:
        number = handle.key_groups.intersect(key_groups).number
        return number, number / handle.key_groups.number

    return max((each for each in handles if score(each)[1] >= threshold), key=score, default=None)


def _open(reader: HandleReader, handle: IncrementalRemoteKeyedStateHandle, context: RecordContext) -> KeyedFile:
    file = reader.open_keyed(handle, context)
    assert file is not None
    if file.is_forst:
        raise UnsupportedError(
            "the database is one of ForSt, whose states are of the asynchronous API",
            where=Where(file=file.name),
            hint="Restore it by records: KeyedStateBackend.restore",
        )
    return file


def _locate_tables(
    handle: IncrementalRemoteKeyedStateHandle, reader: HandleReader
) -> IncrementalRemoteKeyedStateHandle:
    """Name moved tables by their new paths: later snapshots reference them, and are read without path mapping."""
    shared = tuple(replace(each, handle=_locate_table(each.handle, reader)) for each in handle.shared_state)
    return replace(handle, shared_state=shared)


def _locate_table(handle: StreamStateHandle, reader: HandleReader) -> StreamStateHandle:
    if not isinstance(handle, FileStateHandle | SegmentFileStateHandle):
        return handle
    if reader.path_mapping.apply(handle.path) == handle.path:
        return handle
    return replace(handle, path=locate_file(handle, reader.directory, reader.path_mapping).url)


def _take_files(
    store: RocksStore, handle: IncrementalRemoteKeyedStateHandle, file: KeyedFile, reader: HandleReader
) -> None:
    restored = store.directory / "restored"
    shutil.rmtree(restored, ignore_errors=True)
    restored.mkdir()
    directory = resolve(str(restored))
    files = (*handle.shared_state, *handle.private_state)
    with Threads(max(1, store.options.transfer_threads)) as pool:
        for _ in pool.map(lambda each: _take_file(each, directory, reader), files):
            pass
    store.adopt(restored, [info.name for info in file.header.states])


def _take_file(file: HandleAndLocalPath, directory: Location, reader: HandleReader) -> None:
    if not is_plain_name(file.local_path):
        raise FormatError(f"{file.local_path!r:.80} is not the name of a file of a database")
    stream, target = reader.open_stream(file.handle), join(directory, file.local_path)
    source = None if stream.is_segment else stream.location
    # RocksDB never changes a table, so a link is enough. It changes the manifest, which is copied.
    if file.local_path.endswith(TABLE) and source is not None and can_link(source, directory):
        link_file(source, target)
    else:
        copy_stream(stream, target)


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalBackup:
    """Local copies of the snapshot files of one subtask.

    A copy is found by the URL of the uploaded file; no URL is written twice. It is used only if it has the size in the
    handle and, unless it is a hard link, the checksum of the bytes written. A file whose copy is missing or damaged is
    downloaded.

    Attributes:
        directory: directory of the subtask.
    """

    directory: Path

    @staticmethod
    def open(roots: Sequence[str], job_id: str, operator_id: bytes, key_groups: KeyGroupRange) -> LocalBackup:
        """Open the backups of a subtask on this machine.

        Args:
            roots: directories for backups, over which subtasks are distributed; by default a directory of this user
                below the directory for temporary files.
            job_id: id of the job, 32 hexadecimal digits.
            operator_id: 16 bytes.
            key_groups: key groups of the subtask.

        Raises:
            UsageError: the directory cannot be made, or it belongs to another user.
        """
        top = Path(tempfile.gettempdir()) / f"state-pipelines-local-{os.getuid()}"
        if roots:
            top = Path(roots[key_groups.start % len(roots)])
        try:
            top.mkdir(mode=0o700, parents=True, exist_ok=True)
            owner = top.lstat().st_uid
        except OSError as error:
            raise UsageError(f"no directory for local backups: {error}", where=Where(file=str(top))) from error
        if not roots and (owner != os.getuid() or top.is_symlink()):
            raise UsageError(
                "the directory for local backups belongs to another user",
                where=Where(file=str(top)),
                hint="Name another one by execution.checkpointing.local-backup.dirs",
            )
        return LocalBackup(top / job_id / operator_id.hex() / f"{key_groups.start}-{key_groups.end}")

    def keep(self, checkpoint_id: int, files: Mapping[str, Path], base: int) -> None:
        """Keep the files of a snapshot, linked where the disk allows it, in place of older snapshots.

        Args:
            checkpoint_id: id of the snapshot.
            files: local files by the URL of their uploaded copy.
            base: checkpoint id of the last completed snapshot, whose files are kept until this one is completed.
        """
        kept = self._name_snapshot(checkpoint_id)
        with self._replacing(checkpoint_id, base):
            kept.mkdir(parents=True, exist_ok=True)
            for url, path in files.items():
                link_copy(path, kept, url)
            remove_other_copies(kept, files)

    @contextmanager
    def write_copies(self, checkpoint_id: int) -> Iterator[None]:
        """Copy the files of a snapshot that are written while the block runs; call `keep_written` afterwards."""
        with write_copies(self._name_snapshot(checkpoint_id)):
            yield

    def keep_written(self, checkpoint_id: int, handle: KeyedStateHandle | None, directory: Location, base: int) -> None:
        """Keep the copies of the files of a snapshot in place of older snapshots.

        Args:
            checkpoint_id: id of the snapshot.
            handle: handle of the snapshot; copies of files that the last completed snapshot has too are linked.
            directory: directory of the snapshot.
            base: checkpoint id of the last completed snapshot, whose files are kept until this one is completed.
        """
        kept = self._name_snapshot(checkpoint_id)
        with self._replacing(checkpoint_id, base):
            kept.mkdir(parents=True, exist_ok=True)
            files = [] if handle is None else _list_files(handle)
            sizes = {_name_written(file, directory): file.size for file in files}
            for url, size in sizes.items():
                # The checksum is not verified here: a restore reads and verifies the copy.
                copy = self._find_copy(url, size, verify=False)
                if copy is not None:
                    take_copy(copy, kept)
            remove_other_copies(kept, sizes)

    def find(self, handles: Iterable[KeyedStateHandle], reader: HandleReader) -> dict[str, Location]:
        """Find the local copies of the files of snapshots.

        Args:
            handles: handles of the snapshots.
            reader: reader of the handles of the restored snapshot.

        Returns:
            The local copies by the URL of the uploaded ones, for `HandleReader`.
        """
        found: dict[str, Location] = {}
        for handle in handles:
            for file in _list_files(handle):
                url = locate_file(file, reader.directory, reader.path_mapping).url
                copy = self._find_copy(url, file.size, verify=True)
                if copy is not None:
                    found[url] = resolve(str(copy))
        return found

    def _find_copy(self, url: str, size: int, *, verify: bool) -> Path | None:
        found = (find_copy(snapshot, url, size, verify=verify) for snapshot in self.directory.glob("chk-*"))
        return next((copy for copy in found if copy is not None), None)

    @contextmanager
    def _replacing(self, checkpoint_id: int, base: int) -> Iterator[None]:
        kept = self._name_snapshot(checkpoint_id)
        try:
            yield
        except OSError as error:
            _log.warning("no local backup of checkpoint %d: %s", checkpoint_id, error)
            shutil.rmtree(kept, ignore_errors=True)
        with suppress(OSError):
            for each in self.directory.iterdir():
                if each not in (kept, self._name_snapshot(base)):
                    shutil.rmtree(each, ignore_errors=True)

    def _name_snapshot(self, checkpoint_id: int) -> Path:
        return self.directory / f"chk-{checkpoint_id}"


def _name_written(file: FileStateHandle | RelativeFileStateHandle, directory: Location) -> str:
    """The URL of a file that was written, or restored, by this subtask."""
    if isinstance(file, RelativeFileStateHandle):
        return join(directory, file.relative_path).url
    return resolve(file.path).url


def _list_files(handle: KeyedStateHandle) -> list[FileStateHandle | RelativeFileStateHandle]:
    """The files of a handle, without slices of merged files, which have no local copies."""
    streams = list_keyed_streams(handle)
    return [each for each in streams if isinstance(each, FileStateHandle | RelativeFileStateHandle)]
