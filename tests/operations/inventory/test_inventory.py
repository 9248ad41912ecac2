from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from state_pipelines.errors import FormatError, NotFoundError, StateError
from state_pipelines.operations import inventory as updating
from state_pipelines.operations.inventory import (
    Inventory,
    SnapshotSummary,
    find_snapshot,
    parse_partition_key,
    read_inventory,
    summarise_entry,
    update_inventory,
)
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import join, resolve
from state_pipelines.storage.snapshot_writer import find_snapshots
from tests.operations.inventory.trees import JOB, OTHER_JOB, put, put_bytes
from tests.snapshots import DATA
from tests.storages import CountedFileSystem, empty_counted

if TYPE_CHECKING:
    from state_pipelines.storage import Location

TYPES = DATA / "types/flink-2.2"


@pytest.fixture
def root(tmp_path: Path) -> Location:
    return resolve(str(tmp_path / "root"))


@pytest.fixture
def store(tmp_path: Path) -> Location:
    return resolve(str(tmp_path / "results/inventory.parquet"))


def set_time(directory: Location, seconds: int) -> None:
    os.utime(join(directory, "_metadata").path, (seconds, seconds))


def opened() -> list[str]:
    return [path for path, _, _ in CountedFileSystem.reads if path.endswith("_metadata")]


# --- summaries


def summarise(case: str) -> SnapshotSummary:
    return max(update_inventory([resolve(str(TYPES / case))]).inventory, key=lambda each: each.path)


def test_a_savepoint_is_summarised() -> None:
    summary = summarise("heap")
    snapshot = open_snapshot(summary.path)
    assert summary.modified is not None
    assert summary.key == f"{summary.modified:%Y-%m-%d}_savepoint-13aaa9@{snapshot.fingerprint[:8]}"
    assert (summary.kind, summary.format, summary.job_id) == ("savepoint", "canonical", "13aaa9")
    assert (summary.fingerprint, summary.checkpoint_id) == (snapshot.fingerprint, snapshot.checkpoint_id)
    assert summary.bytes == snapshot.file_size
    assert summary.files == len(list(Path(summary.path).iterdir())) - 1
    assert summary.metadata_size == Path(summary.path, "_metadata").stat().st_size
    assert summary.max_parallelism == 128


def test_operators_are_those_of_the_snapshot() -> None:
    summary = summarise("heap")
    operators = open_snapshot(summary.path).operators
    assert [(each.id, each.parallelism, each.max_parallelism, each.keyed_bytes) for each in summary.operators] == [
        (each.id, each.parallelism, each.max_parallelism, each.keyed_size) for each in operators
    ]


def test_names_of_operator_states_are_known() -> None:
    summary = summarise("heap")
    names = {state.name for operator in open_snapshot(summary.path).operators for state in operator.operator_states}
    assert names
    assert {name for operator in summary.operators for name in operator.states} == names


def test_bytes_are_divided_by_kind() -> None:
    summary = summarise("unaligned")
    assert summary.in_flight_bytes > 0
    assert summary.bytes == sum(
        (summary.keyed_bytes, summary.operator_bytes, summary.in_flight_bytes, summary.coordinator_bytes)
    )


def test_an_incremental_checkpoint_has_shared_bytes() -> None:
    summary = summarise("rocksdb-incremental")
    assert (summary.kind, summary.format) == ("checkpoint", "")
    assert 0 < summary.shared_bytes <= summary.keyed_bytes


def test_only_metadata_is_read() -> None:
    place = empty_counted()
    put(place, "savepoint-1")
    update_inventory([place])
    assert {path.rpartition("/")[2] for path, _, _ in CountedFileSystem.reads} == {"_metadata"}


# --- listing


def test_several_roots_are_listed(root: Location) -> None:
    put(root, f"checkpoints/{JOB}/chk-1", 1)
    put(root, f"checkpoints/{OTHER_JOB}/chk-1", 2)
    put(root, "savepoints/savepoint-1", 3)
    roots = [join(root, "checkpoints"), join(root, "savepoints")]
    found = update_inventory(roots).inventory
    assert {each.name: each.root for each in found} == {
        "chk-1-1a2b3c": str(roots[0]),
        "chk-1-ffeedd": str(roots[0]),
        "savepoint-1": str(roots[1]),
    }


def test_a_snapshot_below_two_roots_counts_once(root: Location) -> None:
    put(root, "savepoints/savepoint-1")
    assert len(update_inventory([root, join(root, "savepoints")]).inventory) == 1


def test_the_newest_comes_first(root: Location) -> None:
    for number, seconds in ((1, 2000), (2, 3000), (3, 1000)):
        set_time(put(root, f"{JOB}/chk-{number}", number), seconds)
    assert [each.checkpoint_id for each in update_inventory([root]).inventory] == [2, 1, 3]


def test_an_unreadable_snapshot_does_not_hide_the_others(root: Location) -> None:
    put(root, "savepoint-1")
    put_bytes(root, "savepoint-2", b"broken")
    inventory = update_inventory([root]).inventory
    (broken,) = inventory.unreadable()
    assert broken.name == "savepoint-2"
    assert broken.path in broken.unreadable
    assert [parse_partition_key(key).undated for key in inventory.keys] == ["savepoint-1"]


# --- keys


def test_two_savepoints_of_one_job_have_two_keys(root: Location) -> None:
    put(root, "savepoint-df4606-efe91b44c091", 1)
    put(root, "savepoint-df4606-efe91b44c092", 2)
    keys = update_inventory([root]).inventory.keys
    assert [parse_partition_key(key).undated for key in keys] == ["savepoint-df4606"] * 2
    assert len(set(keys)) == 2


def test_copies_of_a_savepoint_have_one_key(root: Location) -> None:
    put(root, "a/savepoint-df4606-efe91b44c091")
    put(root, "b/savepoint-df4606-efe91b44c091")
    inventory = update_inventory([root]).inventory
    assert len(inventory) == 2
    assert len(inventory.find(inventory.keys[0])) == 2


def test_the_key_of_a_savepoint_says_when_it_was_taken(root: Location) -> None:
    put(root, "savepoint-df4606-efe91b44c091", 1)
    set_time(join(root, "savepoint-df4606-efe91b44c091"), 86_400)
    (summary,) = update_inventory([root]).inventory
    assert summary.key == f"1970-01-02_savepoint-df4606@{summary.fingerprint[:8]}"


def test_a_savepoint_keeps_its_key_when_a_copy_changes_its_time(root: Location, store: Location) -> None:
    put(root, "a/savepoint-df4606-efe91b44c091", 1)
    set_time(join(root, "a/savepoint-df4606-efe91b44c091"), 86_400)
    keys = update_inventory([root], store).inventory.keys
    Path(root.path, "a").rename(f"{root.path}-away")
    assert update_inventory([root], store).gone == keys
    put(root, "b/savepoint-df4606-efe91b44c091", 1)
    assert update_inventory([root], store).inventory.keys == keys


def test_a_savepoint_keeps_the_key_of_a_partition_that_an_older_release_made(root: Location, store: Location) -> None:
    put(root, "savepoint-df4606-efe91b44c091", 1)
    (summary,) = update_inventory([root]).inventory
    old = f"savepoint-df4606@{summary.fingerprint[:8]}"
    other = f"savepoint-df4607@{summary.fingerprint[:8]}"
    inventory = update_inventory([root], store, partitions=[other, "no key", old]).inventory
    assert inventory.keys == (old,)
    assert [each.key for each in inventory.find(summary.key)] == [old]
    assert update_inventory([root], store).inventory.keys == (old,)


@pytest.mark.parametrize("date", ["", "1999-01-01_"])
def test_a_key_finds_its_savepoint_whatever_its_date_is(root: Location, store: Location, date: str) -> None:
    put(root, "savepoint-df4606-efe91b44c091", 1)
    (summary,) = update_inventory([root], store).inventory
    key = f"{date}{summary.key.partition('_')[2]}"
    assert find_snapshot(key, [root], store).path == summary.path
    assert find_snapshot(key, [root]).path == summary.path


def make_colliding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all fingerprints begin with the same eight digits, which real ones do once in four billion times."""

    def collide(*arguments: object) -> SnapshotSummary:
        summary = summarise_entry(*arguments)  # type: ignore[arg-type]
        return replace(summary, fingerprint="0" * 8 + summary.fingerprint[8:])

    monkeypatch.setattr(updating, "summarise_entry", collide)


def test_of_two_snapshots_with_one_key_the_later_has_a_longer_one(
    root: Location, store: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_colliding(monkeypatch)
    put(root, "a/savepoint-x", 1)
    first = update_inventory([root], store).inventory.keys
    put(root, "b/savepoint-x", 2)
    both = update_inventory([root], store).inventory.keys
    assert first[0].endswith("_savepoint-x@00000000")
    assert sorted(map(len, both)) == [len(first[0]), len(first[0]) + 8]
    assert set(first) < set(both)


# --- updates


def test_what_is_known_is_not_opened_again(store: Location) -> None:
    place = empty_counted()
    for number in range(5):
        put(place, f"{JOB}/chk-{number}", number)
    assert len(update_inventory([place], store).new) == 5
    CountedFileSystem.reads.clear()
    update = update_inventory([place], store)
    assert (opened(), update.new, len(update.inventory)) == ([], (), 5)


def test_one_new_snapshot_costs_one_open(store: Location) -> None:
    place = empty_counted()
    for number in range(5):
        put(place, f"{JOB}/chk-{number}", number)
    update_inventory([place], store)
    CountedFileSystem.reads.clear()
    put(place, f"{JOB}/chk-5", 5)
    update = update_inventory([place], store)
    assert len(opened()) == 1
    assert [each.checkpoint_id for each in update.new] == [5]


@pytest.mark.parametrize("files", [0, 3_000])
def test_files_of_state_cost_an_update_no_requests(store: Location, files: int) -> None:
    place = empty_counted()
    for number in range(5):
        put(place, f"{JOB}/chk-{number}", number)
    for number in range(files):
        place.filesystem.pipe_file(join(place, JOB, "shared", str(number)).path, b"state")
    update_inventory([place], store)
    CountedFileSystem.requests.clear()
    assert len(update_inventory([place], store).inventory) == 5
    lists = [path for operation, path in CountedFileSystem.requests if operation == "list"]
    assert sorted(lists) == [
        place.path,
        join(place, JOB).path,
        *(join(place, JOB, f"chk-{number}").path for number in range(5)),
    ]


def test_a_replaced_snapshot_has_another_key(root: Location, store: Location) -> None:
    directory = put(root, f"{JOB}/chk-1", 1)
    (old,) = update_inventory([root], store).inventory.keys
    put(root, f"{JOB}/chk-1", 2)
    set_time(directory, 5000)
    update = update_inventory([root], store)
    assert update.gone == (old,)
    assert update.inventory.keys != (old,)


def test_a_touched_snapshot_keeps_its_key(root: Location, store: Location) -> None:
    directory = put(root, f"{JOB}/chk-1")
    before = update_inventory([root], store).inventory.keys
    set_time(directory, 5000)
    update = update_inventory([root], store)
    assert (update.inventory.keys, update.gone) == (before, ())


def test_the_store_holds_the_whole_inventory(root: Location, store: Location) -> None:
    put(root, f"{JOB}/chk-1", case="rocksdb-incremental")
    put_bytes(root, "savepoint-2", b"broken")
    update = update_inventory([root], store)
    assert list(read_inventory(store)) == list(update.inventory)


def test_an_unchanged_inventory_is_not_stored_again(root: Location, store: Location) -> None:
    put(root, f"{JOB}/chk-1")
    update_inventory([root], store)
    os.utime(store.path, (1000, 1000))
    update_inventory([root], store)
    assert Path(store.path).stat().st_mtime == 1000


def test_a_damaged_store_is_replaced_and_reported(root: Location, store: Location) -> None:
    put(root, f"{JOB}/chk-1")
    update_inventory([root], store)
    Path(store.path).write_bytes(b"PAR1 broken")
    with pytest.raises(FormatError, match="inventory"):
        read_inventory(store)
    assert "inventory is damaged" in update_inventory([root], store).rebuilt
    assert len(read_inventory(store)) == 1


def test_an_unknown_kind_in_the_store_is_damage(root: Location, store: Location) -> None:
    put(root, f"{JOB}/chk-1")
    table = update_inventory([root], store).inventory.table
    kinds = table.schema.get_field_index("kind")
    pq.write_table(table.set_column(kinds, table.schema.field(kinds), pa.array(["sav3point"])), store.path)
    with pytest.raises(FormatError, match="'sav3point' is no kind of snapshot"):
        read_inventory(store)
    assert "inventory is damaged" in update_inventory([root], store).rebuilt


def test_nothing_is_left_beside_the_store(root: Location, store: Location) -> None:
    put(root, f"{JOB}/chk-1")
    update_inventory([root], store)
    assert [each.name for each in Path(store.path).parent.iterdir()] == ["inventory.parquet"]


def test_the_newest_are_opened_first_when_time_is_short(root: Location, store: Location) -> None:
    for number in range(5):
        set_time(put(root, f"{JOB}/chk-{number}", number), 1000 + number)
    update = update_inventory([root], store, threads=1, budget=0)
    assert (len(update.new), update.pending) == (0, 5)
    update = update_inventory([root], store, threads=2, budget=1e-9)
    assert update.pending == 5
    update = update_inventory([root], store)
    assert [each.checkpoint_id for each in update.new] == [4, 3, 2, 1, 0]


class PassingFault(CountedFileSystem):
    """Storage that fails once for every file."""

    protocol = "passing"
    failed: set[str] = set()  # noqa: RUF012

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: object) -> bytes:
        if path.endswith("_metadata") and path not in self.failed:
            self.failed.add(path)
            raise OSError("the storage is busy")
        return super().cat_file(path, start, end, **options)


def test_a_storage_fault_is_tried_again(store: Location) -> None:
    empty_counted()
    place = replace(empty_counted(), filesystem=PassingFault())
    put(place, "savepoint-1")
    (broken,) = update_inventory([place], store).inventory
    assert "the storage is busy" in broken.unreadable
    (summary,) = update_inventory([place], store).inventory
    assert summary.unreadable == ""


def test_damage_is_not_read_again(store: Location) -> None:
    place = empty_counted()
    put_bytes(place, "savepoint-1", b"broken")
    update_inventory([place], store)
    CountedFileSystem.reads.clear()
    (summary,) = update_inventory([place], store).inventory
    assert opened() == []
    assert summary.unreadable


# --- roots that are missing, pruning


def test_the_inventory_of_a_missing_root_is_kept(root: Location, store: Location) -> None:
    put(root, f"{JOB}/chk-1")
    keys = update_inventory([root], store).inventory.keys
    Path(root.path).rename(f"{root.path}.unmounted")
    update = update_inventory([root], store)
    assert (update.inventory.keys, update.missing_roots) == (keys, (str(root),))
    assert update.find_prunable([*keys, "chk-9-1a2b3c@00000000"]) == []


def test_partitions_of_deleted_snapshots_are_prunable(root: Location, store: Location) -> None:
    put(root, f"{JOB}/chk-1", 1)
    put(root, f"{JOB}/chk-2", 2)
    keys = update_inventory([root], store).inventory.keys
    root.filesystem.rm(join(root, JOB, "chk-1").path, recursive=True)
    update = update_inventory([root], store)
    assert update.find_prunable(keys) == list(update.gone)
    assert [key.partition("@")[0] for key in update.gone] == ["chk-1-1a2b3c"]


def test_a_partition_with_the_name_of_an_unreadable_snapshot_is_not_prunable(root: Location, store: Location) -> None:
    directory = put(root, f"{JOB}/chk-1")
    keys = update_inventory([root], store).inventory.keys
    put_bytes(root, f"{JOB}/chk-1", b"broken")
    set_time(directory, 5000)
    assert update_inventory([root], store).find_prunable(keys) == []


def test_other_partitions_are_not_prunable(root: Location) -> None:
    put(root, f"{JOB}/chk-1")
    assert update_inventory([root]).find_prunable(["2026-11-22"]) == []


# --- snapshots outside the roots


def test_a_registered_snapshot_stays(root: Location, store: Location, tmp_path: Path) -> None:
    elsewhere = put(resolve(str(tmp_path)), "elsewhere/savepoint-1")
    put(root, f"{JOB}/chk-1")
    update_inventory([root], store, register=[elsewhere])
    inventory = update_inventory([root], store).inventory
    assert {each.name: each.root for each in inventory} == {"savepoint-1": "", "chk-1-1a2b3c": str(root)}


def test_a_registered_snapshot_that_is_deleted_is_gone(root: Location, store: Location, tmp_path: Path) -> None:
    elsewhere = put(resolve(str(tmp_path)), "elsewhere/savepoint-1")
    keys = update_inventory([root], store, register=[elsewhere]).inventory.keys
    Path(elsewhere.path, "_metadata").unlink()
    update = update_inventory([root], store)
    assert (update.gone, len(update.inventory)) == (keys, 0)


def test_a_directory_without_a_snapshot_cannot_be_registered(root: Location, store: Location, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no snapshot to be registered"):
        update_inventory([root], store, register=[resolve(str(tmp_path))])


def test_what_another_process_registers_meanwhile_is_kept(
    root: Location, store: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = put(resolve(str(tmp_path)), "elsewhere/savepoint-1")
    put(root, f"{JOB}/chk-1")
    update_inventory([root], store)
    put(root, f"{JOB}/chk-2", 2)

    def register_meanwhile(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(updating, "find_snapshots", find_snapshots)
        update_inventory([root], store, register=[elsewhere])
        return find_snapshots(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(updating, "find_snapshots", register_meanwhile)
    update_inventory([root], store)
    assert {each.name for each in read_inventory(store)} == {"chk-1-1a2b3c", "chk-2-1a2b3c", "savepoint-1"}


# --- look-ups


def test_a_snapshot_is_found_by_its_key(root: Location, store: Location) -> None:
    directory = put(root, f"{JOB}/chk-1")
    (key,) = update_inventory([root], store).inventory.keys
    assert find_snapshot(key, [root], store).path == str(directory)


def test_a_known_key_costs_one_open_and_no_listing(store: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    place = empty_counted()
    for number in range(5):
        put(place, f"savepoint-df4606-{number:012x}", number)
    keys = update_inventory([place], store).inventory.keys
    CountedFileSystem.reads.clear()
    monkeypatch.setattr("state_pipelines.operations.inventory.find_snapshots", None)
    find_snapshot(keys[3], [place], store)
    assert len(opened()) == 1


def test_a_key_that_the_inventory_lacks_is_found_by_a_listing(store: Location) -> None:
    place = empty_counted()
    for number in range(5):
        put(place, f"savepoint-df4606-{number:012x}", number)
    update_inventory([place], store)
    put(place, "savepoint-df4606-000000000009", 9)
    (key,) = (each.key for each in update_inventory([place]).new if each.checkpoint_id == 9)
    CountedFileSystem.reads.clear()
    assert find_snapshot(key, [place], store).checkpoint_id == 9
    assert len(opened()) == 1


def test_a_snapshot_is_found_without_an_inventory(root: Location) -> None:
    directory = put(root, f"{JOB}/chk-1")
    (key,) = update_inventory([root]).inventory.keys
    assert find_snapshot(key, [root]).path == str(directory)


def test_a_snapshot_that_moved_is_found(root: Location, store: Location) -> None:
    put(root, "a/savepoint-1")
    (key,) = update_inventory([root], store).inventory.keys
    root.filesystem.mv(join(root, "a").path, join(root, "b").path, recursive=True)
    assert find_snapshot(key, [root], store).path == str(join(root, "b", "savepoint-1"))


def test_a_registered_snapshot_is_found(root: Location, store: Location, tmp_path: Path) -> None:
    elsewhere = put(resolve(str(tmp_path)), "elsewhere/savepoint-1")
    (key,) = update_inventory([root], store, register=[elsewhere]).inventory.keys
    assert find_snapshot(key, [root], store).path == str(elsewhere)


def test_a_deleted_snapshot_is_gone(root: Location, store: Location) -> None:
    directory = put(root, "savepoint-df4606-efe91b44c091", 1)
    put(root, "savepoint-df4606-efe91b44c092", 2)
    (key,) = (each.key for each in update_inventory([root], store).inventory if each.checkpoint_id == 1)
    root.filesystem.rm(directory.path, recursive=True)
    with pytest.raises(NotFoundError, match="is gone") as error:
        find_snapshot(key, [root], store)
    assert error.value.where.file == str(directory)


@pytest.mark.parametrize("updated", [False, True])
def test_a_snapshot_in_the_place_of_another_is_not_taken_for_it(
    root: Location, store: Location, *, updated: bool
) -> None:
    directory = put(root, f"{JOB}/chk-1", 1)
    (key,) = update_inventory([root], store).inventory.keys
    put(root, f"{JOB}/chk-1", 2)
    set_time(directory, 5000)
    (new,) = update_inventory([root], store if updated else None).inventory.keys
    with pytest.raises(NotFoundError, match="another snapshot has replaced") as error:
        find_snapshot(key, [root], store)
    assert new in error.value.hint


def test_damage_is_reported_as_damage(root: Location, store: Location) -> None:
    directory = put(root, f"{JOB}/chk-1", 1)
    (key,) = update_inventory([root], store).inventory.keys
    put_bytes(root, f"{JOB}/chk-1", b"broken")
    with pytest.raises(FormatError) as error:
        find_snapshot(key, [root], store)
    assert str(error.value.where.file).startswith(str(directory))


def test_the_storage_must_take_the_inventory(root: Location, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    put(root, f"{JOB}/chk-1")
    with pytest.raises(StateError, match="cannot write"):
        update_inventory([root], resolve(str(tmp_path / "file/inventory.parquet")))


def test_an_empty_inventory_has_no_keys() -> None:
    assert (Inventory().keys, len(Inventory()), Inventory().find("chk-1@00000000")) == ((), 0, [])


def test_times_are_of_utc(root: Location, store: Location) -> None:
    set_time(put(root, f"{JOB}/chk-1"), 1_700_000_000)
    update_inventory([root], store)
    (summary,) = read_inventory(store)
    assert summary.modified == datetime.fromtimestamp(1_700_000_000, UTC)


def test_names_and_times_that_no_storage_should_have(tmp_path: Path) -> None:
    root = resolve(str(tmp_path))
    sound = put(root, f"{JOB}/chk-1")
    for name in (b"savepoint-\xff", b"savepoint-\n"):
        directory = tmp_path / os.fsdecode(name)
        directory.mkdir()
        (directory / "_metadata").write_bytes(Path(sound.path, "_metadata").read_bytes())
    # In the year 35,680,720; where the file system cannot store it, it is the last one that it can.
    os.utime(Path(sound.path, "_metadata"), (2**50, 2**50))
    inventory = update_inventory([root], join(root, "inventory.parquet")).inventory
    (row,) = inventory.table.to_pylist()
    assert row["path"] == str(sound)
    assert row["modified"].year >= 2106
