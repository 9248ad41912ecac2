from __future__ import annotations

import pickle

import pytest

from state_pipelines.datastream import Duration, Instant, Row, RowKind, Time
from state_pipelines.datastream.type_information import to_millis
from state_pipelines.errors import UsageError


def test_a_row_has_values_by_position() -> None:
    row = Row("Alice", 11)
    assert (row[0], row[1], len(row), list(row)) == ("Alice", 11, 2, ["Alice", 11])
    assert repr(row) == "<Row('Alice', 11)>"


def test_a_row_has_values_by_name() -> None:
    row = Row(name="Alice", age=11)
    assert (row.name, row["age"], row[0]) == ("Alice", 11, 11)
    assert "age" in row
    assert "Alice" not in row
    assert repr(row) == "Row(age=11, name='Alice')"


def test_a_row_of_names_makes_rows() -> None:
    person = Row("name", "age")
    assert person("Alice", 11).as_dict() == {"name": "Alice", "age": 11}


def test_rows_with_names_are_equal_in_any_order() -> None:
    person = Row("name", "age")
    assert person("Alice", 11) == Row(name="Alice", age=11)
    assert hash(person("Alice", 11)) == hash(Row(name="Alice", age=11))
    assert person("Alice", 11) != Row("Alice", 11)


def test_kinds_of_change_are_part_of_a_row() -> None:
    row = Row.of_kind(RowKind.DELETE, 1)
    assert row.get_row_kind() is RowKind.DELETE
    assert row != Row(1)
    assert str(RowKind.UPDATE_BEFORE) == "-U"


def test_values_are_set_by_position_and_name() -> None:
    row = Row(a=1, b=2)
    row["b"] = 3
    row[0] = 5
    assert row.as_dict() == {"a": 5, "b": 3}
    with pytest.raises(AttributeError):
        row.a = 7
    with pytest.raises(AttributeError):
        _ = row.c
    with pytest.raises(KeyError):
        _ = row["c"]


def test_rows_inside_are_converted_to_dicts() -> None:
    row = Row(a=Row(b=1), c=[Row(d=2)])
    assert row.as_dict(recursive=True) == {"a": {"b": 1}, "c": [{"d": 2}]}


def test_rows_are_pickled() -> None:
    row = Row.of_kind(RowKind.UPDATE_AFTER, a=1)
    assert pickle.loads(pickle.dumps(row)) == row


def test_names_and_positions_do_not_mix() -> None:
    with pytest.raises(UsageError):
        Row(1, a=2)
    with pytest.raises(UsageError):
        Row(1).as_dict()
    with pytest.raises(UsageError):
        Row("a")(1, 2)
    with pytest.raises(UsageError):
        Row(a=1).get_fields_by_names(["a", "b"])


def test_lengths_of_time() -> None:
    assert to_millis(Time.days(1)) == to_millis(Duration.of_hours(24)) == 86_400_000
    assert Time.seconds(2) == Time(2000)
    assert str(Time.minutes(1)) == "60000 ms"
    assert Duration.of_millis(1) == Duration.of_nanos(1_000_000)
    with pytest.raises(UsageError):
        to_millis(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("millis", [0, 1, -1, 1_700_000_000_123])
def test_instants_are_milliseconds(millis: int) -> None:
    assert Instant.of_epoch_milli(millis).to_epoch_milli() == millis
