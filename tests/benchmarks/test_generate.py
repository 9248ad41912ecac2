from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks.generate import OPERATOR, generate
from benchmarks.keys import HASHES
from benchmarks.rows import FIRST_TIMER, NAMES, count_entries
from benchmarks.shapes import HOT, STATES, Shape
from state_pipelines import open_snapshot
from state_pipelines.errors import UsageError
from state_pipelines.keyed.digests import RecordDigest, sum_digests
from state_pipelines.keyed.hashing import hash_codes
from state_pipelines.keyed.key_groups import assign_key_groups
from state_pipelines.keyed.keyed_file import digest_states
from state_pipelines.operations.inspect import find_keyed_formats

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from state_pipelines.snapshot import Operator

KEYS = 600
SHAPES = {
    "default": Shape(),
    "compressed": Shape(compressed=True),
    "long keys, all states": Shape(key="long", states=STATES),
    "POJO keys, all states, 1,024 key groups": Shape(key="pojo", states=STATES, parallelism=3, max_parallelism=1024),
    "heap native": Shape(states=STATES, format="heap-native", per_key=2),
    "heap native, compressed": Shape(key="long", format="heap-native", compressed=True, states=("list",)),
    "RocksDB native": Shape(states=STATES, format="rocksdb-native"),
    "half of the keys in one key group": Shape(skew=0.5),
    "POJO keys, skewed, RocksDB native": Shape(key="pojo", skew=0.25, max_parallelism=16, format="rocksdb-native"),
    "all keys in one key group": Shape(key="long", skew=1.0, max_parallelism=8),
}


@pytest.fixture(scope="module", params=SHAPES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Shape, Operator]:
    shape = SHAPES[request.param]
    target = str(tmp_path_factory.mktemp("made") / "snapshot")
    generate(target, KEYS, shape)
    return shape, open_snapshot(target).operator(OPERATOR)


def find_groups(operator: Operator, state: str) -> tuple[pa.ChunkedArray, np.ndarray]:
    table = operator.state(state).to_arrow()
    return table.column("state_key"), table.column("key_group").to_numpy()


def test_every_state_has_its_entries(made: tuple[Shape, Operator]) -> None:
    shape, operator = made
    counted = {state.name: state.count().entries for state in operator.states}
    assert counted == {NAMES[state]: count_entries(state, KEYS, shape) for state in shape.states}


def test_parallelism_and_max_parallelism_are_as_asked(made: tuple[Shape, Operator]) -> None:
    shape, operator = made
    assert (operator.parallelism, operator.max_parallelism) == (shape.parallelism, shape.max_parallelism)
    assert [index for index, _ in operator.keyed_files] == [*range(shape.parallelism)]


def test_the_files_have_the_format_that_was_asked_for(made: tuple[Shape, Operator]) -> None:
    shape, operator = made
    handles = [(subtask.index, subtask.managed_keyed_state) for subtask in operator.metadata.subtasks]
    (found,) = find_keyed_formats(handles, operator.keyed_files, operator.snapshot.handles)
    assert found.format.lower().replace(" ", "-") == shape.format
    assert {file.header.compressed for _, file in operator.keyed_files} == {shape.compressed}


def test_every_key_lies_in_the_key_group_of_its_hash(made: tuple[Shape, Operator]) -> None:
    shape, operator = made
    for state in operator.keyed_states:
        keys, groups = find_groups(operator, state.name)
        codes = hash_codes(state.key_serializer, keys.combine_chunks(), expressions=HASHES)
        assert np.array_equal(assign_key_groups(codes, shape.max_parallelism), groups)


def test_all_states_have_the_same_keys_and_as_many_as_asked(made: tuple[Shape, Operator]) -> None:
    _, operator = made
    found = {
        frozenset(json.dumps(key) for key in find_groups(operator, state.name)[0].to_pylist())
        for state in operator.keyed_states
    }
    assert [len(keys) for keys in found] == [KEYS]


def test_the_hot_key_group_has_its_share_of_all_keys(made: tuple[Shape, Operator]) -> None:
    shape, operator = made
    _, groups = find_groups(operator, NAMES[shape.states[0]])
    count = np.count_nonzero(groups == HOT)
    assert count == round(shape.skew * KEYS) if shape.skew else count < 0.1 * KEYS


def digest(target: Path) -> dict[str, RecordDigest]:
    operator = open_snapshot(str(target)).operator(OPERATOR)
    return sum_digests(digest_states(file, file.key_groups) for _, file in operator.keyed_files)


def test_a_snapshot_is_the_same_every_time(tmp_path: Path) -> None:
    for name in ("one", "other"):
        generate(str(tmp_path / name), KEYS, Shape(skew=0.1))
    assert digest(tmp_path / "one") == digest(tmp_path / "other")


def test_native_formats_hold_what_the_canonical_one_holds(tmp_path: Path) -> None:
    digests = []
    for format in ("canonical", "heap-native", "rocksdb-native"):
        generate(str(tmp_path / format), KEYS, Shape(format=format, states=("value", "map")))
        digests.append(digest(tmp_path / format))
    assert digests[0] == digests[1] == digests[2]
    assert not [each for each in tmp_path.iterdir() if "native" not in each.name and each.name != "canonical"]


def test_the_first_keys_have_these_rows(tmp_path: Path) -> None:
    generate(str(tmp_path / "made"), 2, Shape(states=STATES, per_key=2))
    operator = open_snapshot(str(tmp_path / "made")).operator(OPERATOR)
    assert {(row["state_key"], row["value"]) for row in operator.state("total").to_arrow().to_pylist()} == {
        ("user-0", 0),
        ("user-1", 3),
    }
    profiles = {row["state_key"]: row["value"] for row in operator.state("profile").to_arrow().to_pylist()}
    assert profiles["user-1"] == {"active": False, "age": 1, "id": 1, "name": "name of user 1", "score": 0.25}
    entries = [
        (row["state_key"], row["map_key"], row["map_value"]) for row in operator.state("visits").to_arrow().to_pylist()
    ]
    assert sorted(entries)[2:] == [("user-1", "page-0", 1), ("user-1", "page-1", 2)]
    elements = [
        (row["state_key"], row["list_index"], row["list_value"])
        for row in operator.state("events").to_arrow().to_pylist()
    ]
    assert sorted(elements)[2:] == [("user-1", 0, 1), ("user-1", 1, 2)]
    times = operator.state(NAMES["timers"]).to_arrow().column("timestamp").to_pylist()
    assert sorted(times) == [FIRST_TIMER, FIRST_TIMER + 1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "bytes"},
        {"states": ()},
        {"states": ("value", "value")},
        {"format": "forst"},
        {"format": "rocksdb-native", "compressed": True},
        {"skew": 1.5},
        {"skew": 0.5, "max_parallelism": 1},
        {"per_key": 0},
    ],
    ids=str,
)
def test_shapes_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Shape(**wrong)  # type: ignore[arg-type]
