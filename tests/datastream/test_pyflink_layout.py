"""State in PyFlink's layout: the bytes that PyFlink writes for the same states, and its savepoints as start."""

from __future__ import annotations

from ast import literal_eval
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.backends.changelog import ChangelogSettings
from state_pipelines.backends.rocksdb_store import RocksStore
from state_pipelines.datastream import (
    Instant,
    KeyedProcessFunction,
    KeyedProcessOperator,
    RestoredState,
    Row,
    TaskInfo,
    Types,
    ValueStateDescriptor,
)
from state_pipelines.datastream.table_states import find_coder
from state_pipelines.errors import StateMigrationError, UnsupportedError
from state_pipelines.operations.write.keyed_rewrite import Format
from state_pipelines.snapshot import open_snapshot
from state_pipelines.snapshot.handle_readers import HandleReader
from state_pipelines.snapshot.state import read_arrays
from state_pipelines.storage import PathMapping, resolve
from tests.datastream.pyflink_states import KEYS, ROUNDS, States, expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.backends.entry_store import EntryStore
    from state_pipelines.datastream import TypeInformation

SAVEPOINT = Path(__file__).resolve().parents[1] / "data/pyflink/canonical"


def start(restored: RestoredState | None = None, **options: Any) -> KeyedProcessOperator:
    """One subtask with all key groups."""
    operator = KeyedProcessOperator(
        States(),
        lambda number: f"key-{abs(number) % KEYS}",
        Types.STRING(),
        task=TaskInfo("states", 0, 1, 128),
        pyflink_state=True,
        **options,
    )
    operator.open(restored)
    return operator


def show(operator: KeyedProcessOperator) -> dict[str, dict[str, Any]]:
    """What the states of all keys hold."""
    lines = [operator.process(-KEYS - key) for key in range(KEYS)]
    return {key: literal_eval(text) for ((key, text),) in lines}


def restore() -> RestoredState:
    return RestoredState.of(open_snapshot(str(SAVEPOINT)).operator("states"))


@pytest.fixture
def filled() -> KeyedProcessOperator:
    operator = start()
    for number in range(KEYS * ROUNDS):
        operator.process(number)
    return operator


def test_the_states_hold_what_the_function_put_there(filled: KeyedProcessOperator) -> None:
    assert show(filled) == {f"key-{key}": expect(key) for key in range(KEYS)}


def read_all(file: Any, context: Any) -> dict[tuple[str, bytes], Any]:
    """Arrays of each record by state, record key and map key; those of lists joined, since bundles cut them anyhow."""
    found: dict[tuple[str, bytes], Any] = {}
    for state_id, info in enumerate(file.header.states):
        for _, records in file.scan([state_id]):
            for row in range(len(records)):
                key = records.data[records.key_starts[row] : records.key_ends[row]].tobytes()
                value = records.data[records.value_starts[row] : records.value_ends[row]].tobytes()
                if info.name.startswith("_timer"):
                    found[info.name, key] = b""
                elif info.state_type == "MAP":
                    found[info.name, key] = value if "pairs" not in info.name else value[9:]
                else:
                    found[info.name, key] = b"".join(read_arrays(info, b"", value))
    return found


def test_the_bytes_are_those_of_pyflink(filled: KeyedProcessOperator) -> None:
    operator = open_snapshot(str(SAVEPOINT)).operator("states")
    theirs: dict[Any, Any] = {}
    infos: dict[str, Any] = {}
    for _, file in operator.keyed_files:
        theirs |= read_all(file, operator.record_context)
        infos |= {info.name: info for info in file.header.states}
    live = filled.backend.as_file()
    ours = read_all(live, filled.backend.context)
    # Both hold pickles only, or values of them.
    without = {"python-state-pickled", "python-state-all"}
    assert {key: value for key, value in theirs.items() if key[0] not in without} == ours
    for info in live.header.states:
        assert info == infos[info.name]
    (key_serializer,) = {file.header.key_serializer for _, file in operator.keyed_files}
    assert live.header.key_serializer == key_serializer


STORES: dict[str, Callable[[Path], Callable[[int], EntryStore]] | None] = {
    "hashmap": None,
    "rocksdb": lambda path: lambda prefix: RocksStore(prefix, path / "database"),
}


@pytest.mark.parametrize("backend", STORES)
@pytest.mark.parametrize("changelog", [False, True])
def test_a_savepoint_of_pyflink_goes_on(tmp_path: Path, backend: str, *, changelog: bool) -> None:
    make = STORES[backend]
    options: dict[str, Any] = {} if make is None else {"make_store": make(tmp_path)}
    operator = start(restore(), **options, changelog=ChangelogSettings() if changelog else None)
    assert show(operator) == {f"key-{key}": expect(key) for key in range(KEYS)}
    for number in range(KEYS * ROUNDS, KEYS * (ROUNDS + 1)):
        operator.process(number)
    assert show(operator) == {f"key-{key}": expect(key, ROUNDS + 1) for key in range(KEYS)}
    operator.close()


@pytest.mark.parametrize("file_format", [Format.CANONICAL, Format.HEAP, Format.ROCKSDB])
def test_the_new_state_is_read_by_the_types_of_the_old_one(
    filled: KeyedProcessOperator, tmp_path: Path, file_format: Format
) -> None:
    directory = resolve(str(tmp_path))
    state = filled.snapshot(directory, "state", 1, file_format=file_format)
    file = HandleReader(directory, PathMapping()).open_keyed(state.managed_keyed_state, filled.backend.context)
    assert file is not None
    again = start(RestoredState((file,), (), filled.backend.context, 1))
    assert show(again) == {f"key-{key}": expect(key) for key in range(KEYS)}


def test_other_layouts_are_refused() -> None:
    operator = KeyedProcessOperator(States(), str, Types.STRING(), task=TaskInfo("states", 0, 1, 128))
    with pytest.raises(StateMigrationError, match="The new key serializer"):
        operator.open(restore())


class OneValue(KeyedProcessFunction):
    """Keeps one value of a type."""

    def __init__(self, of: TypeInformation) -> None:
        self.of = of

    def open(self, runtime_context: Any) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value", self.of))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> list[Any]:
        if value is not None:
            self.value.update(value)
        return [self.value.value()]


MOMENT = datetime(2024, 2, 29, 23, 59, 7, 125_000)


@pytest.mark.parametrize(
    ("of", "value"),
    [
        (Types.BYTE(), -128),
        (Types.BOOLEAN(), True),
        (Types.SHORT(), -300),
        (Types.INT(), 1 << 30),
        (Types.LONG(), -(1 << 60)),
        (Types.FLOAT(), 0.25),
        (Types.DOUBLE(), 1e300),
        (Types.STRING(), "Grüße 😀"),
        (Types.CHAR(), "é"),
        (Types.BIG_INT(), 1 << 62),
        (Types.BIG_DEC(), Decimal("-12.50")),
        (Types.INSTANT(), Instant(10**9, 5)),
        (Types.SQL_DATE(), date(2024, 2, 29)),
        (Types.SQL_TIME(), time(12, 30, 7, 250_000)),
        (Types.SQL_TIMESTAMP(), MOMENT),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"\0\xff"),
        (Types.PRIMITIVE_ARRAY(Types.INT()), [1, -1]),
        (Types.BASIC_ARRAY(Types.STRING()), ["a", None, ""]),
        (Types.OBJECT_ARRAY(Types.LONG()), [1, None]),
        (Types.LIST(Types.SQL_TIMESTAMP()), [MOMENT]),
        (Types.MAP(Types.STRING(), Types.SQL_DATE()), {"x": date(1969, 1, 1), "y": None}),
        (Types.TUPLE([Types.INT(), Types.SQL_DATE()]), (1, date(2024, 1, 1))),
        (Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()]), [None, "in"]),
        (Types.ROW([Types.LIST(Types.LONG()), Types.LONG()]), [[1, 2], None]),
    ],
    ids=lambda each: "" if not hasattr(each, "serializer") else str(each),
)
def test_values_of_every_type_come_back(of: TypeInformation, value: Any) -> None:
    options: dict[str, Any] = {"task": TaskInfo("one", 0, 1, 128), "pyflink_state": True}
    with KeyedProcessOperator(OneValue(of), lambda _: 7, Types.LONG(), **options) as operator:
        operator.process(value)
        ((found,),) = [operator.process(None)]
    assert (list(found) if isinstance(found, Row) else found) == value


@pytest.mark.parametrize("of", [Types.POJO("com.acme.A", {"n": Types.INT()}), Types.LOCAL_DATE()], ids=str)
def test_a_type_without_coder_is_refused(of: TypeInformation) -> None:
    with pytest.raises(UnsupportedError, match="PyFlink has no coder for"):
        find_coder(of)
