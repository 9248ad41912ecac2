from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from state_pipelines.javaclasses import load_field_lists
from state_pipelines.operations.write import publication
from state_pipelines.snapshot import open_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

DESCRIPTION = """\
operators:
  - uid: customers
    key: String
    parallelism: 2
    states:
      - {name: total, rows: data, type: Long, columns: {state_key: customer, value: figures.cents}}
      - name: place
        rows: "data/*.parquet"
        type: "Pojo<com.acme.Place>(town: String)"
        ttl: true
        columns: {state_key: customer, value: {town: city}}
      - {name: cities, rows: data, kind: UNION, columns: {value: city}}
      - {name: rules, rows: data, kind: BROADCAST, columns: {map_key: customer, map_value: city}}
  - uid: source
    parallelism: 2
    states:
      - {name: SourceReaderState, rows: offsets.parquet, kind: KAFKA}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of 50 customers each, offsets, and their description."""
    (tmp_path / "data").mkdir()
    for part in range(2):
        numbers = range(part * 50, part * 50 + 50)
        figures = pa.array([{"cents": number * 7} for number in numbers], pa.struct([("cents", pa.int64())]))
        columns = {"customer": [f"c{number}" for number in numbers], "figures": figures, "city": [*map(str, numbers)]}
        pq.write_table(pa.table(columns), tmp_path / "data" / f"{part}.parquet", row_group_size=20)
    offsets = pa.table({"topic": ["a", "b"], "partition": [0, 3], "offset": [10, 20]})
    pq.write_table(offsets, tmp_path / "offsets.parquet")
    (tmp_path / "new.yaml").write_text(DESCRIPTION)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("format", ["canonical", "heap", "rocksdb"])
def test_files_become_a_savepoint(call: Callable[..., Called], folder: Path, format: str) -> None:
    called = call("bootstrap", folder / "new.yaml", "--out", folder / "out", "--format", format, "--json")
    assert called.code == 0
    assert called.json["proof"]["ok"]
    assert {each["state"]: each["entries"] for each in called.json["states"]} == {
        "total": 100,
        "place": 100,
        "cities": 100,
        "rules": 100,
        "SourceReaderState": 2,
    }
    customers = open_snapshot(str(folder / "out"), uids=["customers"]).operator("customers")
    totals = {row["state_key"]: row["value"] for row in customers.state("total").to_arrow().to_pylist()}
    assert totals == {f"c{number}": number * 7 for number in range(100)}
    places = {row["state_key"]: row["value"] for row in customers.state("place").to_arrow().to_pylist()}
    assert places == {f"c{number}": {"town": str(number)} for number in range(100)}
    cities = customers.state("cities").to_arrow().to_pylist()
    assert sorted(int(row["value"]) for row in cities) == list(range(100))
    assert [sum(row["subtask"] == subtask for row in cities) for subtask in range(2)] == [50, 50]


def test_what_was_written_is_shown(call: Callable[..., Called], folder: Path) -> None:
    called = call("bootstrap", folder / "new.yaml", "--out", folder / "out")
    assert called.code == 0
    assert "written_reads_back" in called.out
    assert f"new savepoint: {folder / 'out'}" in called.out


def test_a_dry_run_writes_nothing(call: Callable[..., Called], folder: Path) -> None:
    called = call("bootstrap", folder / "new.yaml", "--out", folder / "out", "--dry-run")
    assert (called.code, "nothing was written" in called.out) == (0, True)
    assert not (folder / "out").exists()


def test_a_key_that_comes_twice_is_the_answer_no(call: Callable[..., Called], folder: Path) -> None:
    first = (folder / "data" / "0.parquet").read_bytes()
    (folder / "data" / "2.parquet").write_bytes(first)
    called = call("bootstrap", folder / "new.yaml", "--out", folder / "out")
    assert called.code == 1
    assert "several rows" in called.err
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("operators:", "operator:", "has no 'operator'"),
        ("uid: customers", "id: customers", "an operator has no 'id'"),
        ("parallelism: 2", "parallelism: two", "parallelism of an operator is 'two'"),
        ("name: total, rows: data,", "name: total,", "a state lacks 'rows'"),
        ("rows: data, type: Long", "rows: nothing, type: Long", "there are no Parquet files"),
        ("figures.cents", "figures.euros", "no column figures.euros"),
        ("figures.cents", "[1]", "not a name"),
        ("type: Long", "type: Boolean", "int64 does not fit bool"),
        ("key: String", "key: Lnog", "not a serializer"),
        ("operators:", "operators: [", "no YAML"),
        ("figures.cents", "[]", "`columns` gives no column of the rows for value"),
        ("key: String", "key: String\n    hashes: {com.acme.Key: 1}", "the hash of com.acme.Key is 1, not text"),
        ("name: cities", f"name: {'n' * 70_000}", "too long for writeUTF"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    call: Callable[..., Called], folder: Path, old: str, new: str, message: str
) -> None:
    (folder / "new.yaml").write_text(DESCRIPTION.replace(old, new, 1))
    for options in ([], ["--dry-run"]):
        called = call("bootstrap", folder / "new.yaml", "--out", folder / "out", *options)
        assert called.code == 2
        assert message in called.err
    assert not (folder / "out").exists()


@pytest.mark.slow
def test_a_dry_run_refuses_files_that_cannot_be_linked(
    call: Callable[..., Called], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("bootstrap", folder / "new.yaml", "--out", folder / "base").code == 0
    (folder / "new.yaml").write_text(DESCRIPTION.replace("uid: ", "uid: other-"))
    monkeypatch.setattr(publication, "can_link", lambda *_: False)
    for options in ([], ["--dry-run"]):
        arguments = ("--base", folder / "base", "--out", folder / "out", "--files", "link", *options)
        called = call("bootstrap", folder / "new.yaml", *arguments)
        assert called.code == 2
        assert "cannot be linked" in called.err


def test_a_file_that_is_no_parquet_is_named(call: Callable[..., Called], folder: Path) -> None:
    (folder / "data" / "0.parquet").write_text("text")
    called = call("bootstrap", folder / "new.yaml", "--out", folder / "out")
    assert called.code == 2
    assert "0.parquet" in called.err


@pytest.mark.parametrize("options", [["--uid", "a"], ["--map", "/a=/b"], ["--allow-root", "/a"]])
def test_options_about_the_base_need_one(call: Callable[..., Called], folder: Path, options: list[str]) -> None:
    called = call("bootstrap", folder / "new.yaml", "--out", folder / "out", *options)
    assert called.code == 2
    assert f"{options[0]} has no effect without --base" in called.err


KRYO = """\
operators:
  - uid: points
    key: String
    parallelism: 2
    states:
      - {name: points, rows: points.parquet, kind: LIST, type: List<Kryo<com.acme.Point>>, columns: {state_key: name}}
"""
CLASSES = "final com.acme.Point: [x: int, tags: ArrayList<String>]"


@pytest.mark.slow
def test_values_of_kryo_are_those_of_the_release_that_starts(call: Callable[..., Called], tmp_path: Path) -> None:
    points = [[{"x": 1, "tags": ["a"]}, {"x": 2, "tags": []}], [{"x": 3, "tags": ["b", "c"]}]]
    pq.write_table(pa.table({"name": ["p", "q"], "value": points}), tmp_path / "points.parquet")
    (tmp_path / "classes.yaml").write_text(CLASSES)
    (tmp_path / "new.yaml").write_text(KRYO)
    (tmp_path / "described.yaml").write_text(f"{KRYO}classes: [classes.yaml]\nflink_version: '1.20'\n")
    given = ("--classes", tmp_path / "classes.yaml")
    for name, options, version in (
        ("new", (*given, "--flink-version", "1.20"), 2),
        ("new", (*given, "--flink-version", "2.2"), 5),
        ("new", given, 5),
        ("described", (), 2),
    ):
        out = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
        assert call("bootstrap", tmp_path / f"{name}.yaml", "--out", out, *options).code == 0
        snapshot = open_snapshot(str(out), uids=["points"], classes=load_field_lists([tmp_path / "classes.yaml"]))
        assert snapshot.kryo_version == version
        rows = snapshot.operator("points").state("points").to_arrow().to_pylist()
        found = [each["list_value"] for each in sorted(rows, key=lambda each: each["list_value"]["x"])]
        assert found == [point for each in points for point in each]
        assert call("verify", out, "--depth", "whole", *given).code == 0
    called = call("bootstrap", tmp_path / "described.yaml", "--out", tmp_path / "x", "--flink-version", "2.2")
    assert (called.code, "flink_version of the description is 1.20" in called.err) == (2, True)
    called = call("bootstrap", tmp_path / "new.yaml", "--out", tmp_path / "x", "--flink-version", "2.2", "--base", out)
    assert (called.code, "Kryo's bytes differ between the two" in called.err) == (2, True)
