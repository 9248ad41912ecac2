from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.backends.operator_backend import (
    OperatorStateBackend,
    read_raw_keyed,
    read_raw_operator,
    restore_broadcasts,
    write_raw_keyed,
    write_raw_operator,
)
from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.errors import UnsupportedError, UsageError, ValueRangeError
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.operatorstate import UnreadOperatorState
from state_pipelines.serializers.build import VOID_NAMESPACE, basic, tuple_of
from state_pipelines.serializers.state_meta_info import broadcast_state, keyed_state, operator_list
from state_pipelines.snapshot.handle_readers import HandleReader
from state_pipelines.storage import PathMapping, parse_path_mapping, resolve
from tests.snapshots import CASES, Case

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.backends.operator_backend import OldOperatorState
    from state_pipelines.operatorstate import OperatorStateFile
    from state_pipelines.serializers.state_meta_info import StateMetaInfo

LAYOUTS = LayoutContext()
STRING, LONG = basic("String"), basic("Long")
OFFSETS = operator_list("offsets", tuple_of(STRING, LONG))
BUFFER = operator_list("buffer", STRING)
UNION = operator_list("union", LONG, "UNION")
RULES = broadcast_state("rules", STRING, LONG)


def make_backend() -> OperatorStateBackend:
    return OperatorStateBackend(LAYOUTS)


def save(backends: list[OperatorStateBackend], path: Path, *, compressed: bool = False) -> list[OldOperatorState]:
    """Snapshots of subtasks, opened."""
    directory = resolve(str(path))
    reader = HandleReader(directory, PathMapping())
    handles = [each.snapshot(directory, f"file-{index}", compressed=compressed) for index, each in enumerate(backends)]
    return [reader.open_operator(handle) for handle in handles]


def restore(old: list[OldOperatorState], parallelism: int) -> list[OperatorStateBackend]:
    backends = [make_backend() for _ in range(parallelism)]
    for subtask, backend in enumerate(backends):
        backend.restore(old, subtask, parallelism)
    return backends


def fill(parallelism: int) -> list[OperatorStateBackend]:
    backends = [make_backend() for _ in range(parallelism)]
    for subtask, backend in enumerate(backends):
        backend.register_list(OFFSETS).update([{"f0": f"p{subtask}-{each}", "f1": each} for each in range(3)])
        backend.register_list(BUFFER).add("x" * subtask)
        backend.register_list(UNION).add_all([subtask, subtask + 10])
        rules = backend.register_broadcast(RULES)
        rules.put("a", 1)
        rules.put("b", 2)
    return backends


def read(backend: OperatorStateBackend) -> dict[str, Any]:
    return {
        "offsets": [each["f0"] for each in backend.register_list(OFFSETS).get()],
        "buffer": backend.register_list(BUFFER).get(),
        "union": backend.register_list(UNION).get(),
        "rules": dict(backend.register_broadcast(RULES).entries()),
    }


@pytest.mark.parametrize("compressed", [False, True])
def test_the_same_parallelism_gives_split_lists_back(tmp_path: Path, compressed: bool) -> None:
    found = [read(each) for each in restore(save(fill(2), tmp_path, compressed=compressed), 2)]
    assert found == [
        {
            "offsets": [f"p{subtask}-{each}" for each in range(3)],
            "buffer": ["x" * subtask],
            "union": [0, 10, 1, 11],
            "rules": {"a": 1, "b": 2},
        }
        for subtask in range(2)
    ]


@pytest.mark.parametrize("parallelism", [1, 3, 5])
def test_another_parallelism_deals_out_split_lists(tmp_path: Path, parallelism: int) -> None:
    found = [read(each) for each in restore(save(fill(2), tmp_path), parallelism)]
    sizes = [len(each["offsets"]) for each in found]
    assert max(sizes) - min(sizes) <= 1
    offsets = sorted(name for each in found for name in each["offsets"])
    assert offsets == sorted(f"p{subtask}-{each}" for subtask in range(2) for each in range(3))
    assert sorted(text for each in found for text in each["buffer"]) == ["", "x"]
    assert all(each["union"] == [0, 10, 1, 11] and each["rules"] == {"a": 1, "b": 2} for each in found)


def test_states_that_nobody_registers_stay(tmp_path: Path) -> None:
    (first,) = restore(save(fill(1), tmp_path), 1)
    first.register_list(OFFSETS).clear()
    (tmp_path / "again").mkdir()
    (again,) = restore(save([first], tmp_path / "again"), 1)
    assert read(again) == {"offsets": [], "buffer": [""], "union": [0, 10], "rules": {"a": 1, "b": 2}}


def test_without_states_there_is_no_file(tmp_path: Path) -> None:
    assert save([make_backend(), make_backend()], tmp_path) == [None, None]
    assert list(tmp_path.iterdir()) == []
    assert restore([None, None], 1)[0].states == ()


def test_a_state_without_elements_is_restored(tmp_path: Path) -> None:
    backend = make_backend()
    backend.register_list(OFFSETS)
    backend.register_broadcast(RULES)
    (again,) = restore(save([backend], tmp_path), 1)
    assert {info.name for info in again.states} == {"offsets", "rules"}
    assert again.register_list(OFFSETS).get() == []


def test_null_elements_are_refused() -> None:
    table = make_backend().register_list(BUFFER)
    table.add("a")
    with pytest.raises(UsageError, match="You cannot add null value to list state"):
        table.add_all(["b", None])
    with pytest.raises(ValueRangeError):
        table.update(["b", 5])
    assert table.get() == ["a"]


def test_broadcast_entries() -> None:
    table = make_backend().register_broadcast(RULES)
    for key, value in (("a", 1), ("b", 2), ("a", 3)):
        table.put(key, value)
    table.remove("b")
    table.remove("unknown")
    assert [table.get("a"), table.get("b"), table.contains("a"), table.contains("b")] == [3, None, True, False]
    table.clear()
    assert list(table.entries()) == []


def test_a_file_with_several_broadcast_states_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make_backend()
    for name in ("rules", "limits", "names"):
        backend.register_broadcast(broadcast_state(name, STRING, LONG)).put(name, 1)
    old = save([backend], tmp_path)
    read, names = UnreadOperatorState.read, []

    def note(unread: UnreadOperatorState) -> OperatorStateFile:
        names.append(unread.name)
        return read(unread)

    monkeypatch.setattr(UnreadOperatorState, "read", note)
    _, entries = restore_broadcasts(old, 0, 1, LAYOUTS)
    assert [len(each) for each in entries.values()] == [1, 1, 1]
    assert len(names) == 1


def test_a_state_is_registered_once() -> None:
    backend = make_backend()
    assert backend.register_list(BUFFER) is backend.register_list(BUFFER)
    assert backend.register_broadcast(RULES) is backend.register_broadcast(RULES)


def test_another_distribution_mode_is_refused(tmp_path: Path) -> None:
    (again,) = restore(save(fill(1), tmp_path), 1)
    with pytest.raises(UsageError, match=r"Was \[UNION\], registered with \[SPLIT_DISTRIBUTE\]"):
        again.register_list(operator_list("union", LONG))
    with pytest.raises(UsageError, match="BROADCAST"):
        again.register_broadcast(broadcast_state("union", LONG, LONG))
    with pytest.raises(UsageError):
        again.register_list(RULES)
    with pytest.raises(UsageError):
        again.register_broadcast(keyed_state("v", "VALUE", LONG, VOID_NAMESPACE))
    again.register_list(BUFFER)
    with pytest.raises(UsageError, match="before"):
        again.restore([None], 0, 1)


def test_elements_without_bytes_are_not_guessed(tmp_path: Path) -> None:
    info = operator_list("empty", tuple_of(basic("NullValue")))
    backend = make_backend()
    backend.register_list(info).update([{"f0": None}] * 4)
    old = save([backend], tmp_path)
    assert len(restore(old, 1)[0].register_list(info).get()) == 4
    with pytest.raises(UnsupportedError, match="distinguished"):
        restore(old, 2)


def list_elements(backends: list[OperatorStateBackend], info: StateMetaInfo) -> list[bytes]:
    return sorted(element for backend in backends for element in backend.register_list(info).elements)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_elements_of_real_snapshots_are_kept(case: Case, tmp_path: Path) -> None:
    snapshot, kept = case.open_told(), 0
    for operator in snapshot.operators:
        reader = HandleReader(snapshot.location.directory, parse_path_mapping(case.path_mapping))
        handles = [subtask.managed_operator_state for subtask in operator.metadata.subtasks]
        old = [reader.open_operator(handle) for handle in handles]
        before, after = restore(old, len(old)), restore(old, 3)
        for info in after[0].states:
            if info.distribution_mode == "SPLIT_DISTRIBUTE":
                assert list_elements(after, info) == list_elements(before, info)
                kept += len(list_elements(after, info))
    assert kept or all(entry["kind"] != "operator" for entry in case.entries())


def test_raw_keyed_bytes_go_to_the_key_groups(tmp_path: Path) -> None:
    directory = resolve(str(tmp_path))
    content = {2: b"two", 3: b"", 5: b"five"}
    handle = write_raw_keyed(content, KeyGroupRange(2, 4), directory, "raw")
    assert handle is not None
    stream = HandleReader(directory, PathMapping()).open_stream(handle.delegate)
    assert dict(read_raw_keyed(handle, stream, KeyGroupRange(0, 8))) == content
    assert dict(read_raw_keyed(handle, stream, KeyGroupRange(3, 2))) == {3: b""}
    assert write_raw_keyed({}, KeyGroupRange(2, 4), directory, "none") is None
    with pytest.raises(UsageError, match="Key group 6"):
        write_raw_keyed({6: b""}, KeyGroupRange(2, 4), directory, "raw")


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_raw_operator_partitions_are_dealt_out(tmp_path: Path, parallelism: int) -> None:
    directory = resolve(str(tmp_path))
    reader = HandleReader(directory, PathMapping())
    old = []
    for index, partitions in enumerate(([b"a", b"", b"", b"bc"], [], [b"", b"def", b""])):
        handle = write_raw_operator(partitions, directory, f"raw-{index}")
        old.append(None if handle is None else (handle, reader.open_stream(handle.delegate)))
    found = [list(read_raw_operator(old, subtask, parallelism)) for subtask in range(parallelism)]
    assert sorted(each for part in found for each in part) == [b"", b"", b"", b"", b"a", b"bc", b"def"]
    assert list(read_raw_operator([None, None], 0, 2)) == []
