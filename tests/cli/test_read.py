from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from state_pipelines.cli.read import write_parquet
from state_pipelines.errors import StorageError, UnsupportedError
from state_pipelines.snapshot import open_snapshot
from tests.connectors.test_kafka import SPLIT
from tests.connectors.vectors import element
from tests.snapshot.built import build_snapshot, list_operator
from tests.snapshot.savepoints import ALL_TYPES
from tests.snapshots import select

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

HEAP = next(each for each in ALL_TYPES if each.name == "types-2.2-heap")
ORDER = ("--operator", "orders", "--state", "order")


def test_json_gives_every_row(call: Callable[..., Called], savepoint: Path) -> None:
    rows = call("read", savepoint, *ORDER, "--json").lines
    assert len({row["state_key"] for row in rows}) == len(rows) == 200


def test_json_has_the_values(call: Callable[..., Called], savepoint: Path) -> None:
    (row,) = call("read", savepoint, *ORDER, "--key", '"order-0064"', "--json").lines
    assert row == {
        "key_group": 1,
        "subtask": 0,
        "state_key": "order-0064",
        "state_namespace": None,
        "value": {
            "address": {"city": "San José", "street": "Main Street 64", "zip": "84976"},
            "amount": -616,
            "customer": "Zoë",
            "id": "order-0064",
            "note": "🎁 gift",
            "quantity": -2,
            "status": "NEW",
            "updatedAt": {"epoch_second": 1767225728, "nano": 901084217},
        },
    }


def test_only_the_wanted_columns(call: Callable[..., Called], savepoint: Path) -> None:
    columns = "state_key,value.amount,value.address.city"
    (row,) = call("read", savepoint, *ORDER, "--columns", columns, "--key", '"order-0064"', "--json").lines
    assert row == {"state_key": "order-0064", "value": {"address": {"city": "San José"}, "amount": -616}}


def test_only_the_wanted_key_groups(call: Callable[..., Called], savepoint: Path) -> None:
    rows = call("read", savepoint, *ORDER, "--key-groups", "60-70", "--json").lines
    assert {row["subtask"] for row in rows} == {0, 1}
    assert {row["key_group"] for row in rows} <= set(range(60, 71))


def test_lists_are_flattened(call: Callable[..., Called], savepoint: Path) -> None:
    arguments = ("read", savepoint, "--operator", "orders", "--state", "history", "--json")
    flat, nested = call(*arguments).lines, call(*arguments, "--no-flatten").lines
    assert len(nested) == 200
    assert [row["list_value"] for row in flat] == [item for row in nested for item in row["value"]]


def test_raw_gives_the_stored_bytes(call: Callable[..., Called], savepoint: Path) -> None:
    (row,) = call("read", savepoint, *ORDER, "--raw", "--limit", 1, "--json").lines
    # The key is a string of 10 characters behind its length plus one; the last byte is the void namespace.
    assert row["key_bytes"] == "0b" + b"order-0198".hex() + "00"


def test_limit_ends_the_rows(call: Callable[..., Called], savepoint: Path) -> None:
    assert len(call("read", savepoint, *ORDER, "--limit", 7, "--json").lines) == 7


def test_the_table_stops_and_says_so(call: Callable[..., Called], savepoint: Path) -> None:
    out = call("read", savepoint, "--operator", "orders", "--state", "last-seen").out
    assert out.startswith("key_group  subtask  state_key")
    assert out.count("order-") + out.count("Bestellung-") == 20
    assert "--limit" in out


def test_a_table_that_shows_all_does_not_say_so(call: Callable[..., Called], savepoint: Path) -> None:
    assert "--limit" not in call("read", savepoint, *ORDER, "--key", '"order-0064"').out


def test_a_key_that_is_text_needs_no_quotes(call: Callable[..., Called], savepoint: Path) -> None:
    plain, quoted = (call("read", savepoint, *ORDER, "--key", key, "--json") for key in ("order-0064", '"order-0064"'))
    assert plain.out == quoted.out
    assert len(plain.lines) == 1
    place = ("read", savepoint, "--operator", "orders", "--json", "--key")
    assert call(*place, "order-0064").out == call(*place, '"order-0064"').out != ""


def test_a_number_is_text_where_keys_are_text(call: Callable[..., Called], savepoint: Path) -> None:
    assert call("read", savepoint, *ORDER, "--key", "17").out == "no rows\n"


def test_without_an_operator_the_states_are_listed(call: Callable[..., Called], savepoint: Path) -> None:
    called = call("read", savepoint)
    assert called.code == 0
    assert "--operator UID" in called.out
    rows = call("read", savepoint, "--json").lines
    assert len(rows) == 14
    assert rows[8] == {
        "operator": "orders",
        "name": rows[8]["name"],
        "state": "quantities",
        "kind": "MAP",
        "type": "Map<String, Long>",
        "error": None,
    }


def test_an_operator_that_cannot_be_read_hides_no_other(call: Callable[..., Called], broken: Path) -> None:
    operator = open_snapshot(str(broken)).operator("orders")
    for name in {file.name for _, file in operator.keyed_files}:
        (broken / name.rpartition("/")[2]).unlink()
    rows = call("read", broken, "--json").lines
    row, _ = [row for row in rows if row["operator"] == "orders"]
    assert "does not exist" in row["error"]
    assert {row["operator"] for row in rows if row["error"] is None} >= {"order-counter", "pricing"}


def test_no_rows(call: Callable[..., Called], savepoint: Path) -> None:
    assert call("read", savepoint, *ORDER, "--key", '"nobody"').out == "no rows\n"


def test_an_operator_is_a_table(call: Callable[..., Called], savepoint: Path) -> None:
    (row,) = call("read", savepoint, "--operator", "orders", "--key", '"order-0064"', "--json").lines
    assert (row["state_key"], row["order"]["id"], row["order"]["amount"]) == ("order-0064", "order-0064", -616)
    columns = ("--columns", "state_key,order.amount", "--states", "order", "--key", '"order-0064"')
    (row,) = call("read", savepoint, "--operator", "orders", *columns, "--json").lines
    assert row == {"state_key": "order-0064", "order": {"amount": -616}}


def test_timers_of_an_operator(call: Callable[..., Called], savepoint: Path) -> None:
    place = ("read", savepoint, "--operator", "orders")
    rows = call(*place, "--timers", "--json").lines
    singles = call(*place, "--state", "_timer_state/event_user-timers", "--json").lines
    found = [(row["state_key"], time) for row in rows for time in row["_timer_state/event_user-timers"] or ()]
    assert sorted(found) == sorted((row["state_key"], row["timestamp"]) for row in singles)


def test_parquet_holds_an_operator(call: Callable[..., Called], savepoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    call("read", savepoint, "--operator", "orders", "--parquet", file)
    assert pq.read_table(file).equals(open_snapshot(str(savepoint)).operator("orders").to_arrow())


def test_operator_state(call: Callable[..., Called], savepoint: Path) -> None:
    rows = call("read", savepoint, "--operator", "order-counter", "--state", "counts", "--json").lines
    assert {tuple(row) for row in rows} == {("subtask", "list_index", "value")}


@pytest.mark.parametrize(
    ("operator", "state"),
    [("orders", "order"), ("orders", "quantities"), ("pricing", "prices"), ("orders", "last-seen")],
)
def test_parquet_holds_the_table(
    call: Callable[..., Called], savepoint: Path, tmp_path: Path, operator: str, state: str
) -> None:
    file = tmp_path / "new" / "rows.parquet"
    called = call("read", savepoint, "--operator", operator, "--state", state, "--parquet", file)
    expected = open_snapshot(str(savepoint)).operator(operator).state(state).to_arrow()
    assert pq.read_table(file).equals(expected)
    assert called.err == f"{len(expected):,} rows written to {file}\n"


def test_parquet_is_not_written_over(call: Callable[..., Called], savepoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    file.write_bytes(b"mine")
    called = call("read", savepoint, *ORDER, "--parquet", file)
    assert (called.code, file.read_bytes()) == (2, b"mine")
    assert called.err.startswith("error: a file of this name exists already")


def test_parquet_of_damaged_files_holds_the_rows_before_the_damage(
    call: Callable[..., Called], broken: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.parquet"
    whole = open_snapshot(str(broken)).operator("orders").state("order").to_arrow()
    for each in sorted(broken.iterdir()):
        if each.name != "_metadata":
            each.write_bytes(each.read_bytes()[:-3])
    called = call("read", broken, *ORDER, "--parquet", file)
    written = pq.read_table(file)
    assert called.code == 2
    assert f"{len(written):,} rows written to {file}" in called.err
    assert len(written) < len(whole)


def test_a_parquet_file_whose_storage_fails_is_removed(
    call: Callable[..., Called], savepoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StorageError("the storage does not answer")

    file = tmp_path / "rows.parquet"
    monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write_batch", fail)
    assert call("read", savepoint, *ORDER, "--parquet", file).code == 2
    assert not file.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--operator", "nobody", "--state", "order"), "the snapshot has no operator nobody"),
        (("--operator", "orders", "--state", "nothing"), "the operator has no state nothing"),
        ((*ORDER, "--states", "order"), "--state does not go with --states"),
        (("--operator", "orders", "--flatten"), "--flatten has no effect without --state"),
        (("--operator", "pricing"), "the operator has no keyed state"),
        ((*ORDER, "--columns", "nothing"), "the state has no column nothing"),
        ((*ORDER, "--key-groups", "5-2"), "'5-2' is not a range of key groups"),
        (("--state", "order"), "--state has no effect without --operator"),
        (("--operator", "pricing", "--state", "prices", "--key-groups", "1"), "operator state has no key groups"),
        ((*ORDER, "--json", "--parquet", "x"), "--json does not go with --parquet"),
        ((*ORDER, "--classes", "nowhere.yaml"), "the file does not exist"),
    ],
)
def test_wrong_use(call: Callable[..., Called], savepoint: Path, arguments: tuple[str, ...], message: str) -> None:
    called = call("read", savepoint, *arguments)
    assert (called.code, called.out) == (2, "")
    assert called.err.startswith(f"error: {message}")


def test_declared_subclasses_are_rows_too(call: Callable[..., Called], tmp_path: Path) -> None:
    classes = tmp_path / "classes.yaml"
    classes.write_text("types.Guest extends types.Person: [visits: int]", encoding="utf-8")
    place = ("--operator", "composite-types", "--state", "person-or-guest")
    rows = call("read", HEAP.path, *place, "--classes", classes, "--json").lines
    assert {row["value"]["class"] for row in rows if row["value"]} == {"types.Guest", "types.Person"}


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--strict",), 3)])
def test_rows_of_undeclared_subclasses_are_noted(
    call: Callable[..., Called], options: tuple[str, ...], code: int
) -> None:
    place = ("--operator", "composite-types", "--state", "person-or-guest")
    called = call("read", HEAP.path, *place, "--json", *options)
    assert called.code == code
    assert "note: rows are missing: " in called.err
    assert "composite-types, state person-or-guest" in called.err


def test_splits_of_a_source_are_rows(call: Callable[..., Called], tmp_path: Path) -> None:
    build_snapshot(tmp_path, list_operator("source", "SourceReaderState", [element(0, SPLIT)]))
    chosen = ("--operator", "source", "--state", "SourceReaderState", "--columns", "connector,split")
    (row,) = call("read", tmp_path, *chosen, "--json").lines
    assert (row["connector"], row["split"]["topic"], row["split"]["offset"]) == ("kafka", "orders", 42)
    assert "topic: orders" in call("read", tmp_path, *chosen).out


def test_data_in_flight_is_read_by_its_name(call: Callable[..., Called]) -> None:
    (case,) = [each for each in select("2.2.1", "unaligned") if "types" in each.name]
    rows = call("read", case.path, "--operator", "slow-map", "--state", "_in_flight_data", "--json").lines
    stored = case.open().operator("slow-map").state("_in_flight_data").to_arrow().to_pylist()
    assert rows == [row | {"value_bytes": row["value_bytes"].hex()} for row in stored]
    assert {row["direction"] for row in rows} == {"input", "output"}


def test_a_column_that_parquet_cannot_hold_is_told(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    with pytest.raises(UnsupportedError, match=r"Parquet cannot hold a column: .*no child field"):
        write_parquet(pa.schema([("value", pa.struct([]))]), [], str(file))
    assert not file.exists()


@pytest.mark.parametrize("state", [("--state", "quantities"), ()], ids=["state", "operator"])
def test_key_groups_that_do_not_exist_are_wrong_use(
    call: Callable[..., Called], savepoint: Path, state: tuple[str, ...]
) -> None:
    called = call("read", savepoint, "--operator", "orders", *state, "--key-groups", "9999")
    assert called.code == 2
    assert "there are no key groups 9999-9999" in called.err
    assert "The operator has the key groups 0-127" in called.err
