"""A subtask keeps copies of the files of its snapshots, whatever their form, and is restored from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.backends.changelog import ChangelogSettings
from state_pipelines.backends.entry_store import HeapStore
from state_pipelines.backends.rocksdb_store import RocksStore
from state_pipelines.backends.snapshots import LocalBackup
from state_pipelines.codecs.layout import LayoutContext
from state_pipelines.datastream import KeyedProcessFunction, KeyedProcessOperator, Types, ValueStateDescriptor
from state_pipelines.datastream.operators import DatabaseFiles, KeyedHandles, RestoredState
from state_pipelines.errors import StateError
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.metadata.handles import (
    ChangelogStateBackendHandle,
    IncrementalRemoteKeyedStateHandle,
    KeyGroupRange,
)
from state_pipelines.operations.write.keyed_rewrite import Format
from state_pipelines.snapshot.handle_readers import HandleReader
from state_pipelines.storage import PathMapping, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from state_pipelines.datastream import RuntimeContext
    from state_pipelines.metadata.handles import KeyedStateHandle

FORMS = {
    "heap": ("heap", Format.HEAP, False),
    "heap compressed": ("heap", Format.HEAP, False),
    "canonical": ("heap", Format.CANONICAL, False),
    "rocksdb": ("rocksdb", Format.ROCKSDB, False),
    "changelog of heap": ("heap", Format.HEAP, True),
    "changelog of rocksdb": ("rocksdb", Format.ROCKSDB, True),
}
"""Form of a snapshot -> store, format, and whether there is a changelog."""
KEYS = 50


class Count(KeyedProcessFunction):
    """Counts the elements of each key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield count


@dataclass
class Job:
    """One subtask that runs again and again, and the directory of its snapshots."""

    form: str
    folder: Path
    backup: LocalBackup = field(init=False)
    runs: int = 0

    def __post_init__(self) -> None:
        self.backup = LocalBackup.open([str(self.folder / "disk")], "0" * 32, bytes(16), KeyGroupRange(0, 128))

    @property
    def uploads(self) -> list[Path]:
        return [path for path in (self.folder / "checkpoints").rglob("*") if path.is_file()]

    @property
    def copies(self) -> list[Path]:
        return [path for path in (self.folder / "disk").rglob("*") if path.is_file()]

    def open(self, restored: RestoredState | None = None, *, kept: bool = True) -> KeyedProcessOperator:
        self.runs += 1
        database, (store, _, changelog) = self.folder / f"database-{self.runs}", FORMS[self.form]
        operator = KeyedProcessOperator(
            Count(),
            lambda number: f"key-{number % KEYS}",
            Types.STRING(),
            make_store=HeapStore if store == "heap" else partial(RocksStore, directory=database),
            backup=self.backup if kept else None,
            changelog=ChangelogSettings(None) if changelog else None,
        )
        operator.open(restored)
        return operator

    def write(self, operator: KeyedProcessOperator, number: int) -> KeyedStateHandle:
        directory = self.folder / "checkpoints" / f"chk-{number}"
        directory.mkdir(parents=True)
        _, file_format, changelog = FORMS[self.form]
        written = operator.snapshot(
            resolve(str(directory)),
            f"file-{number}",
            number,
            file_format=file_format,
            compressed="compressed" in self.form,
            shared=resolve(str(directory.parent)) if changelog else None,
        )
        assert written.managed_keyed_state is not None
        return written.managed_keyed_state

    def find(self, handle: KeyedStateHandle, number: int) -> RestoredState:
        """Open a snapshot as the driver does."""
        directory = resolve(str(self.folder / "checkpoints" / f"chk-{number}"))
        mapping = PathMapping().allow([str(self.folder / "checkpoints")])
        context = RecordContext(128, LayoutContext())
        file = HandleReader(directory, mapping).open_keyed(handle, context)
        assert file is not None
        return RestoredState(
            (file,),
            (None,),
            context,
            number,
            databases=DatabaseFiles((handle,), directory, mapping)
            if isinstance(handle, IncrementalRemoteKeyedStateHandle)
            else None,
            changelogs=(handle,) if isinstance(handle, ChangelogStateBackendHandle) else (),
            handles=KeyedHandles((handle,), directory, mapping),
        )


@pytest.fixture(params=FORMS)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    return Job(request.param, tmp_path)


def process(operator: KeyedProcessOperator, times: int = 1) -> set[int]:
    """Counts of all keys after some elements of each."""
    with operator:
        return {count for number in range(KEYS * times) for count in operator.process(number)[-1:]}


def write_first(job: Job) -> RestoredState:
    """Each key has the count 1."""
    operator = job.open()
    for number in range(KEYS):
        operator.process(number)
    handle = job.write(operator, 1)
    operator.close()
    return job.find(handle, 1)


def overwrite(paths: list[Path]) -> None:
    for path in paths:
        path.write_bytes(bytes(path.stat().st_size))


def test_a_subtask_with_copies_reads_no_uploaded_file(job: Job) -> None:
    restored = write_first(job)
    overwrite(job.uploads)
    assert process(job.open(restored)) == {2}
    with pytest.raises(StateError), job.open(restored, kept=False):
        pass


@pytest.mark.parametrize("damage", ["other bytes", "missing"])
def test_a_damaged_copy_is_not_used(job: Job, damage: str) -> None:
    restored = write_first(job)
    assert job.copies
    # RocksDB's own files have checksums of their own, which name the file that is damaged.
    if damage == "missing":
        for path in job.copies:
            path.unlink()
    else:
        overwrite(job.copies)
    assert process(job.open(restored)) == {2}


def test_copies_of_files_that_are_still_needed_stay(job: Job) -> None:
    operator = job.open(write_first(job))
    for number in range(KEYS // 2):
        operator.process(number)
    handle = job.write(operator, 2)
    assert sorted(path.name for path in job.backup.directory.iterdir()) == ["chk-1", "chk-2"]
    operator.notify_checkpoint_complete(2)
    third = job.write(operator, 3)
    assert sorted(path.name for path in job.backup.directory.iterdir()) == ["chk-2", "chk-3"]
    operator.close()
    changelog = FORMS[job.form][2]
    if changelog:
        assert isinstance(handle, ChangelogStateBackendHandle)
        assert (len(handle.materialized), len(handle.non_materialized)) == (1, 1)
    for number, each in ((2, handle), (3, third)):
        restored = job.find(each, number)
        saved = {path: path.read_bytes() for path in job.uploads}
        overwrite(job.uploads)
        assert process(job.open(restored)) == {2, 3}
        for path, content in saved.items():
            path.write_bytes(content)


def test_a_failed_snapshot_leaves_no_copies_behind_the_next_one(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = job.open(write_first(job))
    operator.process(0)
    with monkeypatch.context() as patch:
        patch.setattr(LocalBackup, "keep_written", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            job.write(operator, 2)
    job.write(operator, 3)
    operator.close()
    assert sorted(path.name for path in job.backup.directory.iterdir()) == ["chk-1", "chk-3"]
