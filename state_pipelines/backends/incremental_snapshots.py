"""Incremental snapshots of a RocksDB store: tables that an earlier snapshot has uploaded are referenced.

Source: `RocksIncrementalSnapshotStrategy`, `RocksDBIncrementalCheckpointUtils`, `RocksDBStateUploader`.
"""

from __future__ import annotations

import shutil
import uuid
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from state_pipelines.backends.keyed_snapshots import KeyedSnapshot
from state_pipelines.binary.data_views import Writer
from state_pipelines.errors import StateError
from state_pipelines.keyed.header import write_keyed_header
from state_pipelines.metadata.handles import (
    FileStateHandle,
    HandleAndLocalPath,
    IncrementalRemoteKeyedStateHandle,
    RelativeFileStateHandle,
)
from state_pipelines.rocksdb.writer import list_files
from state_pipelines.storage import join, resolve
from state_pipelines.storage.files import copy_file, remove_file
from state_pipelines.storage.locations import Threads

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from state_pipelines.backends.keyed_backend import KeyedStateBackend
    from state_pipelines.backends.local_backup import LocalBackup
    from state_pipelines.backends.rocksdb_store import RocksStore
    from state_pipelines.metadata.handles import StreamStateHandle
    from state_pipelines.storage import Location

TABLE = ".sst"

HEADER = "header"
"""Local file with the serializers of the states, which RocksDB does not know."""


class IncrementalSnapshots:
    """Snapshots of one backend, each based on the last one that was completed.

    Args:
        backend: the live state.
        store: of the backend.
        restored: the handle whose files the store took over; later snapshots go on from it.
        backup: keeps the files of the last snapshots on this machine; None keeps none.

    Attributes:
        identifier: UUID text of the backend; handles with the same one name the same tables by the same names.
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
            # Tables that only the restored snapshot may use are relative to it, as in native savepoints.
            self._uploaded[self._completed] = {
                each.local_path: each.handle
                for each in restored.shared_state
                if not isinstance(each.handle, RelativeFileStateHandle)
            }

    def write(self, checkpoint_id: int, directory: Location, shared: Location, *, full: bool = False) -> KeyedSnapshot:
        """Upload the tables that the last completed snapshot does not have, and everything that changes.

        Every file is uploaded before the handle that names it is returned. If one cannot be, those of this call are
        removed.

        Args:
            checkpoint_id: of the snapshot; ascending.
            directory: of the snapshot, for the files that only it uses; handles name them relative to it.
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
        """Base later snapshots on this one (`notifyCheckpointComplete`)."""
        if checkpoint_id in self._uploaded and checkpoint_id > self._completed:
            self._completed = checkpoint_id
            self._uploaded = {each: known for each, known in self._uploaded.items() if each >= checkpoint_id}

    def abort(self, checkpoint_id: int) -> None:
        """Forget a snapshot that was not completed; the shared-file registry removes its files."""
        if checkpoint_id != self._completed:
            self._uploaded.pop(checkpoint_id, None)

    def _upload(self, paths: Sequence[Path], targets: Sequence[Location]) -> list[int]:
        with Threads(max(1, self._store.options.transfer_threads)) as pool:
            # In the context of this thread, which notes the files that are written (`storage.files`).
            # Names are random, so that nothing is there: a store is not asked first.
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
