"""Snapshots of a changelog: what each one uploads, and what the next one builds on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.backends.changelog import ChangelogSettings, ChangelogSnapshots, ChangelogStore
from state_pipelines.backends.entry_store import HeapStore
from state_pipelines.backends.keyed_backend import KeyedStateBackend
from state_pipelines.backends.rocksdb_store import RocksStore
from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.errors import StateError
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.metadata.handles import ChangelogStateBackendHandle, ChangelogStateHandleStream, KeyGroupRange
from state_pipelines.serializers.build import VOID_NAMESPACE, basic, list_of
from state_pipelines.serializers.state_meta_info import keyed_state
from state_pipelines.snapshot.handle_readers import HandleReader
from state_pipelines.storage import PathMapping, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.backends.entry_store import EntryStore

KEYS = basic("String")
COUNT = keyed_state("count", "VALUE", basic("Long"), VOID_NAMESPACE)
WORDS = keyed_state("words", "LIST", list_of(basic("String")), VOID_NAMESPACE)
ALL = KeyGroupRange(0, 128)


class Clock:
    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time


class Job:
    """One subtask, and the directory of its snapshots."""

    def __init__(self, folder: Path, store: EntryStore) -> None:
        self.folder, self.clock = folder, Clock()
        self.store = ChangelogStore(store)
        self.backend = KeyedStateBackend(self.store, KEYS, ALL, 128, LayoutContext())
        self.snapshots = ChangelogSnapshots(
            self.backend, self.store, settings=ChangelogSettings(timedelta(minutes=10)), now=self.clock
        )

    def put(self, key: str, count: int, *words: str) -> None:
        count_table, words_table = self.backend.register(COUNT), self.backend.register(WORDS)
        self.backend.set_current_key(key)
        count_table.put(count)
        words_table.append(words)

    def write(self, number: int, **options: Any) -> ChangelogStateBackendHandle:
        directory = resolve(str(self.folder))
        written = self.snapshots.write(number, directory, directory, **options)
        assert isinstance(written.handle, ChangelogStateBackendHandle)
        assert written.handle.persisted_size == written.size
        return written.handle

    def read(self, handle: ChangelogStateBackendHandle) -> dict[str, tuple[int | None, list[str] | None]]:
        """The state of a handle, as another job restores it."""
        reader = HandleReader(resolve(str(self.folder)), PathMapping().allow([str(self.folder)]))
        file = reader.open_keyed(handle, RecordContext(128, LayoutContext()))
        assert file is not None
        backend = KeyedStateBackend(HeapStore(1), KEYS, ALL, 128, LayoutContext())
        backend.restore([file])
        counts, words = backend.register(COUNT), backend.register(WORDS)
        found = {}
        for key in counts.keys():  # noqa: SIM118
            backend.set_current_key(key)
            found[key] = (counts.get(), words.get())
        return found


def list_logs(handle: ChangelogStateBackendHandle) -> list[str]:
    """Paths of the logs."""
    logs = [each for each in handle.non_materialized if isinstance(each, ChangelogStateHandleStream)]
    assert len(logs) == len(handle.non_materialized)
    return [stream.handle.path for each in logs for stream in each.streams]  # type: ignore[union-attr]


@pytest.fixture(params=["heap", "rocksdb"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    store = HeapStore(1) if request.param == "heap" else RocksStore(1, tmp_path / "database")
    (tmp_path / "checkpoints").mkdir()
    made = Job(tmp_path / "checkpoints", store)
    yield made
    made.backend.close()


@pytest.mark.slow
def test_after_the_base_only_changes_are_uploaded(job: Job) -> None:
    for number in range(1000):
        job.put(f"key-{number}", number, "a", "b,c")
    base = job.write(1)
    job.snapshots.complete(1)
    job.put("key-7", 70, "d")
    job.put("key-7", 71)
    job.put("new", 1)
    second = job.write(2)
    assert (len(base.non_materialized), len(second.non_materialized)) == (0, 1)
    assert second.materialized == base.materialized
    assert second.persisted_size < base.persisted_size / 20
    state = job.read(second)
    assert (state["key-7"], state["new"], len(state)) == ((71, ["a", "b,c", "d"]), (1, None), 1001)
    # Without changes nothing is written.
    job.snapshots.complete(2)
    third = job.write(3)
    assert (third.persisted_size, third.non_materialized) == (0, second.non_materialized)


def test_the_changes_of_an_aborted_snapshot_are_in_the_next_one(job: Job) -> None:
    job.put("a", 1)
    job.write(1)
    job.snapshots.complete(1)
    job.put("a", 2, "x")
    aborted = job.write(2)
    for path in list_logs(aborted):
        Path(path.removeprefix("file:")).unlink()
    job.snapshots.abort(2)
    job.put("b", 3)
    third = job.write(3)
    assert not set(list_logs(third)) & set(list_logs(aborted))
    assert job.read(third) == {"a": (2, ["x"]), "b": (3, None)}


def test_snapshots_that_wait_at_the_same_time_stand_alone(job: Job) -> None:
    job.put("a", 1)
    job.write(1)
    job.snapshots.complete(1)
    job.put("a", 1, "second")
    second = job.write(2)
    job.put("a", 1, "third")
    third = job.write(3)
    assert job.read(second) == {"a": (1, ["second"])}
    assert job.read(third) == {"a": (1, ["second", "third"])}
    job.snapshots.complete(2)
    job.put("a", 1, "fourth")
    fourth = job.write(4)
    assert job.read(fourth) == {"a": (1, ["second", "third", "fourth"])}
    job.snapshots.complete(3)
    job.snapshots.complete(4)
    assert job.read(job.write(5)) == {"a": (1, ["second", "third", "fourth"])}


def test_the_first_base_counts_when_it_is_completed(job: Job) -> None:
    job.put("a", 1, "x")
    job.write(1)
    job.snapshots.abort(1)
    job.put("a", 2)
    second = job.write(2)
    assert not second.non_materialized
    assert second.materialization_id == 2
    assert job.read(second) == {"a": (2, ["x"])}


def test_an_old_base_is_replaced_and_so_is_one_that_a_full_snapshot_wants(job: Job) -> None:
    job.put("a", 1)
    first = job.write(1)
    job.snapshots.complete(1)
    job.clock.time += timedelta(minutes=9, seconds=59)
    job.put("a", 2)
    assert job.write(2).materialized == first.materialized
    job.snapshots.complete(2)
    job.clock.time += timedelta(seconds=1)
    third = job.write(3)
    assert (third.materialized == first.materialized, third.non_materialized) == (False, ())
    job.snapshots.complete(3)
    fourth = job.write(4, full=True)
    assert fourth.materialized != third.materialized
    assert job.read(fourth) == {"a": (2, None)}


def test_a_log_that_cannot_be_written_is_not_left_behind(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.put("a", 1)
    job.write(1)
    job.snapshots.complete(1)
    kept = set(job.folder.iterdir())
    job.put("a", 2)

    def fail(*_: object, **__: object) -> None:
        raise StateError("no space")

    with monkeypatch.context() as patch:
        patch.setattr("state_pipelines.backends.changelog.create_file", fail)
        with pytest.raises(StateError, match="no space"):
            job.write(2)
    assert set(job.folder.iterdir()) == kept
    assert job.read(job.write(2)) == {"a": (2, None)}
