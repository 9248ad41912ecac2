from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.codecs.kryo import load_classes
from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.errors import FormatError, NotFoundError, UnsupportedError, UsageError
from state_pipelines.keyed import operator_table
from state_pipelines.keyed.canonical import CanonicalFile
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.keyed.operator_columns import StateLayout
from state_pipelines.keyed.operator_table import OperatorTable, OperatorTableOptions
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.operations.state_rows import to_rows
from state_pipelines.serializers.build import VOID_NAMESPACE, basic, timer
from state_pipelines.serializers.state_meta_info import StateMetaInfo, keyed_state, priority_queue
from state_pipelines.serializers.text import parse
from state_pipelines.snapshot.keyed_state import KeyedState
from tests.keyed.canonical_files import make_canonical
from tests.snapshot.savepoints import ALL_ORDERS, ALL_TYPES, MADE, Savepoint, orders, types

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.serializers import tree
    from state_pipelines.snapshot import Operator

GUEST = load_classes("types.Guest extends types.Person: [visits: int]")
KEYS = ["key_group", "subtask", "state_key", "state_namespace"]


def to_list(table: pa.Table) -> list[dict[str, Any]]:
    """Rows with values that Python has no type for as text."""
    return [row for batch in table.to_batches() for row in to_rows(batch)]


def place(row: dict[str, Any]) -> str:
    return repr([row[name] for name in KEYS])


def explode(state: KeyedState, rows: list[dict[str, Any]]) -> Counter[str]:
    """What a column of the one table says, in the form of the rows of the single table."""
    found: Counter[str] = Counter()
    for row in rows:
        cell = row[state.name]
        if cell is None:
            continue
        for index, each in enumerate(cell if state.kind in ("LIST", "MAP", "TIMER") else [cell]):
            key, value = each if state.kind == "MAP" else (None, each)
            extra = [value]
            if state.kind != "TIMER" and state.layout.ttl:
                extra = [None, None] if value is None else [value["value"], value["ttl_last_access"]]
            found[repr([place(row), key, index if state.kind == "LIST" else None, *extra])] += 1
    return found


def single_rows(state: KeyedState) -> Counter[str]:
    """The rows of the single table, but those that only say null."""
    found: Counter[str] = Counter()
    for row in to_list(state.to_arrow()):
        names = {"LIST": "list_value", "MAP": "map_value", "TIMER": "timestamp"}
        extra = [row[names.get(state.kind, "value")]]
        if state.kind != "TIMER" and state.layout.ttl:
            extra.append(row["ttl_last_access"])
        if extra != [None] or state.kind == "MAP" or row.get("list_index") is not None:
            found[repr([place(row), row.get("map_key"), row.get("list_index"), *extra])] += 1
    return found


def explode_bytes(state: KeyedState, rows: list[dict[str, Any]]) -> Counter[str]:
    """The values that could not be decoded."""
    found: Counter[str] = Counter()
    for row in rows:
        cell = row.get(f"{state.name}_bytes")
        if cell is not None:
            assert state.name in row["reason"]
            found.update(
                place(row) + each for each in ([value for _, value in cell] if state.kind == "MAP" else [cell])
            )
    return found


@pytest.mark.slow
# The compressed one and the one with 1024 key groups hold what the plain ones of the same job hold.
@pytest.mark.parametrize(
    "savepoint", [*ALL_TYPES, *ALL_ORDERS, *(each for each in MADE if "2.2.1-main" not in str(each))], ids=str
)
def test_the_table_holds_what_the_tables_of_its_states_hold(savepoint: Savepoint) -> None:
    for operator in savepoint.open(classes=GUEST).operators:
        states = [each for each in operator.states if isinstance(each, KeyedState) and not each.undecoded]
        if not states:
            continue
        options = OperatorTableOptions(states=tuple(each.name for each in states))
        table = operator.to_arrow(options)
        table.validate(full=True)
        rows = to_list(table)
        assert [each["key_group"] for each in rows if each["subtask"] == 0] == sorted(
            each["key_group"] for each in rows if each["subtask"] == 0
        )
        places: set[str] = set()
        for state in states:
            assert explode(state, rows) == single_rows(state), state.name
            single = to_list(state.to_arrow(TableOptions(flatten=False)))
            failed = Counter(place(row) + row["value_bytes"] for row in single if row.get("value_bytes"))
            assert explode_bytes(state, rows) == failed
            places |= {place(row) for row in single}
        if len({repr(each.schema.field("state_namespace").type) for each in states}) == 1:
            assert Counter(place(row) for row in rows) == Counter(places)


CONTEXT = RecordContext(128, LayoutContext())
INT, LONG, STRING = basic("Int"), basic("Long"), basic("String")
TOTAL = keyed_state("total", "VALUE", LONG, VOID_NAMESPACE)
NAMES = keyed_state("names", "LIST", parse("List<String>"), VOID_NAMESPACE)
COUNTS = keyed_state("counts", "MAP", parse("Map<Byte, Byte>"), VOID_NAMESPACE)

Record = tuple[str, str]
"""Key behind the prefix, and value, hexadecimal."""


@dataclass(frozen=True)
class Small:
    """A file that is read in windows of a few bytes."""

    file: CanonicalFile
    header: KeyedHeader
    key_groups: KeyGroupRange
    name: str = "small"

    def scan(
        self, state_ids: Sequence[int], key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[int, KeyedRecords]]:
        yield from self.file.scan(state_ids, key_groups, window=32)


def write(
    infos: Sequence[StateMetaInfo], sections: dict[int, dict[int, list[Record]]], key: tree.Serializer = INT
) -> CanonicalFile:
    """A file of records by key group and state id."""
    runs = [
        (key_group, state_id, [(bytes.fromhex(key_bytes), bytes.fromhex(value)) for key_bytes, value in records])
        for key_group, states in sections.items()
        for state_id, records in states.items()
    ]
    header = KeyedHeader(key_serializer=key, states=tuple(infos))
    return make_canonical(header, KeyGroupRange(0, 128), 1, runs)


def layouts(infos: Sequence[StateMetaInfo], key: tree.Serializer = INT) -> list[StateLayout]:
    found = []
    for info in infos:
        layout = derive_keyed_layout(info, key, 128, LayoutContext())
        found.append(StateLayout(info.name, layout.state_type, layout.key, layout.value, layout.ttl))
    return found


def read(
    infos: Sequence[StateMetaInfo],
    sections: dict[int, dict[int, list[Record]]],
    *,
    key: tree.Serializer = INT,
    **options: Any,
) -> list[dict[str, Any]]:
    table = OperatorTable(layouts(infos, key), OperatorTableOptions(**options))
    batches = table.batches([write(infos, sections, key)], 3)
    return to_list(pa.Table.from_batches(batches, table.schema))


def test_a_row_holds_all_states_of_a_key() -> None:
    rows = read(
        [TOTAL, NAMES],
        {
            5: {
                0: [("00000007 00", "0000000000000001"), ("00000009 00", "0000000000000002")],
                1: [("00000009 00", "0261 2c 0262"), ("00000002 00", "0263")],
            },
            6: {1: [("00000001 00", "0264")]},
        },
    )
    place = {"subtask": 3, "state_namespace": None}
    assert rows == [
        {"key_group": 5, "state_key": 7, "total": 1, "names": None, **place},
        {"key_group": 5, "state_key": 9, "total": 2, "names": ["a", "b"], **place},
        {"key_group": 5, "state_key": 2, "total": None, "names": ["c"], **place},
        {"key_group": 6, "state_key": 1, "total": None, "names": ["d"], **place},
    ]


def test_entries_of_a_map_need_not_be_adjacent() -> None:
    entries = [("00000007 00 01", "00 0a"), ("00000008 00 05", "00 0b"), ("00000007 00 02", "01")]
    rows = read([COUNTS], {1: {0: entries}}, columns=("state_key", "counts"))
    assert rows == [{"state_key": 7, "counts": [[1, 10], [2, None]]}, {"state_key": 8, "counts": [[5, 11]]}]


@pytest.mark.parametrize("info", [TOTAL, NAMES])
def test_a_key_that_comes_twice_is_an_error(info: StateMetaInfo) -> None:
    value = "0000000000000001" if info is TOTAL else "0261"
    with pytest.raises(FormatError, match="the key 7 comes twice") as caught:
        read([info], {1: {0: [("00000007 00", value), ("00000008 00", value), ("00000007 00", value)]}})
    assert (caught.value.where.file, caught.value.where.state) == ("savepoint/file", info.name)


def test_a_void_namespace_is_null_beside_another_one() -> None:
    window = keyed_state("window", "VALUE", INT, basic("TimeWindow"))
    rows = read(
        [TOTAL, window],
        {
            1: {
                0: [("00000007 00", "0000000000000001")],
                1: [("00000007 0000000000000003 0000000000000004", "00000002")],
            }
        },
        columns=("state_namespace", "total", "window"),
    )
    assert rows == [
        {"state_namespace": None, "total": 1, "window": None},
        {"state_namespace": {"start": 3, "end": 4}, "total": None, "window": 2},
    ]


def test_a_void_namespace_is_not_a_global_window_though_the_bytes_are_the_same() -> None:
    window = keyed_state("window", "VALUE", INT, basic("GlobalWindow"))
    records = {0: [("00000007 00", "0000000000000001")], 1: [("00000007 00", "00000002")]}
    assert [row["total"] for row in read([TOTAL, window], {1: records})] == [1, None]


def test_two_namespaces_are_told_with_their_states() -> None:
    infos = [TOTAL, *(keyed_state(kind, "VALUE", INT, basic(kind)) for kind in ("TimeWindow", "CountWindow"))]
    with pytest.raises(UsageError, match=r"TimeWindow \| CountWindow.*stateVarName"):
        read(infos, {})


def test_states_with_the_name_of_another_column_get_a_prefix() -> None:
    infos = [keyed_state(name, "VALUE", INT, VOID_NAMESPACE) for name in ("state_subtask", "subtask", "Reason", "b.c")]
    table = OperatorTable(layouts(infos), OperatorTableOptions())
    assert table.schema.names[4:] == ["state_subtask", "state_state_subtask", "state_Reason", "b.c"]
    assert OperatorTable(layouts(infos), OperatorTableOptions(columns=("b.c",))).schema.names == ["b.c"]


def timers(key: tree.Serializer, namespace: tree.Serializer) -> StateMetaInfo:
    return priority_queue("timers", timer(key, namespace))


def test_timers_are_lists_in_order_and_give_rows_of_their_own() -> None:
    sections = {
        1: {
            0: [("00000007 00", "0000000000000001")],
            1: [
                ("8000000000000005 00000008 00", ""),
                ("8000000000000004 00000007 00", ""),
                ("7fffffffffffffff 00000007 00", ""),
            ],
        }
    }
    infos = [TOTAL, timers(INT, VOID_NAMESPACE)]
    rows = read(infos, sections, columns=("state_key", "total", "timers"))
    assert rows == [
        {"state_key": 7, "total": 1, "timers": [-1, 4]},
        {"state_key": 8, "total": None, "timers": [5]},
    ]


def test_keys_and_namespaces_with_their_lengths_are_matched_with_those_of_timers() -> None:
    # Neither has a fixed length, so that each is followed by its own in the keys of states, but not in timers.
    infos = [keyed_state("total", "VALUE", LONG, STRING), timers(STRING, STRING)]
    sections = {1: {0: [("0261 02 036263 03", "0000000000000001")], 1: [("8000000000000005 0261 036263", "")]}}
    (row,) = read(infos, sections, key=STRING)
    assert (row["state_key"], row["state_namespace"], row["total"], row["timers"]) == ("a", "bc", 1, [5])


def find_key(key: int, infos: Sequence[StateMetaInfo], sections: Any) -> list[dict[str, Any]]:
    table = OperatorTable(layouts(infos), OperatorTableOptions(key=key))
    return to_list(pa.Table.from_batches(table.batches([write(infos, sections)], 0), table.schema))


def test_one_key_is_read() -> None:
    infos = [TOTAL, timers(INT, VOID_NAMESPACE)]
    sections = {1: {0: [("00000007 00", "0000000000000001")], 1: [("8000000000000005 00000008 00", "")]}}
    assert [row["state_key"] for row in find_key(8, infos, sections)] == [8]
    assert find_key(9, infos, sections) == []


def test_a_state_without_layout_is_stored_bytes_with_the_reason() -> None:
    total, counts = layouts([TOTAL, COUNTS])
    states = [replace(each, value=None, reason="it was lost") for each in (total, counts)]
    table = OperatorTable(states, OperatorTableOptions())
    file = write([TOTAL, COUNTS], {1: {0: [("00000007 00", "0102")], 1: [("00000007 00 01", "00 0a")]}})
    (row,) = to_list(pa.Table.from_batches(table.batches([file], 0), table.schema))
    assert {name: row[name] for name in table.schema.names[4:]} == {
        "total_bytes": "0102",
        "counts_bytes": [["01", "000a"]],
        "reason": "total: it was lost; counts: it was lost",
    }
    chosen = OperatorTable(states, OperatorTableOptions(columns=("state_key", "total")))
    assert chosen.schema.names == ["state_key", "total_bytes", "reason"]


def test_raw_rows_are_bytes() -> None:
    (row,) = read([TOTAL], {1: {0: [("00000007 00", "0000000000000001")]}}, raw=True)
    assert row == {"key_group": 1, "subtask": 3, "key_bytes": "0000000700", "total_bytes": "0000000000000001"}


def test_a_column_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(UsageError, match="no column price"):
        read([TOTAL], {}, columns=("price",))
    with pytest.raises(UsageError, match="no field key"):
        read([COUNTS], {}, columns=("counts.key",))


RUNS = st.dictionaries(
    st.sampled_from([0, 3, 90]),
    st.tuples(
        st.lists(st.integers(0, 9), unique=True, max_size=9),
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), unique=True, max_size=20),
    ),
    min_size=1,
)


@pytest.mark.slow
@given(RUNS, st.booleans(), st.sampled_from([1, 3, 1 << 17]))
def test_rows_group_the_records_of_every_window(
    runs: dict[int, tuple[list[int], list[tuple[int, int]]]], small: bool, batch: int
) -> None:
    sections: dict[int, dict[int, list[Record]]] = {}
    expected = []
    for key_group in sorted(runs):
        keys, entries = runs[key_group]
        records = {
            0: [(f"{key:08x}00", f"{key:016x}") for key in keys],
            1: [(f"{key:08x}00{own:02x}", f"00{own:02x}") for key, own in entries],
        }
        sections[key_group] = {state_id: each for state_id, each in records.items() if each}
        for key in dict.fromkeys([*keys, *(key for key, _ in entries)]):
            counts = [[own, own] for each, own in entries if each == key] or None
            expected.append(
                {"key_group": key_group, "state_key": key, "total": key if key in keys else None, "counts": counts}
            )
    infos = [TOTAL, COUNTS]
    table = OperatorTable(layouts(infos), OperatorTableOptions(columns=("key_group", "state_key", "total", "counts")))
    file = write(infos, sections)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator_table, "BATCH_ROWS", batch)
        batches = table.read([Small(file, file.header, file.key_groups) if small else file], 0)  # type: ignore[list-item]
        assert to_list(pa.Table.from_batches(batches, table.schema)) == expected


@pytest.mark.parametrize("window", [1, 1 << 20])
def test_timers_in_a_file_of_their_own_are_matched(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_table, "WINDOW", window)
    infos = [TOTAL, timers(INT, VOID_NAMESPACE)]
    table = OperatorTable(layouts(infos), OperatorTableOptions(columns=("key_group", "total", "timers")))
    values = write(infos[:1], {key_group: {0: [("00000007 00", f"{key_group:016x}")]} for key_group in (0, 9)})
    times = write(infos[1:], {key_group: {0: [("8000000000000005 00000007 00", "")]} for key_group in (9, 127)})
    assert to_list(pa.Table.from_batches(table.batches([values, times], 0), table.schema)) == [
        {"key_group": 0, "total": 0, "timers": None},
        {"key_group": 9, "total": 9, "timers": [5]},
        {"key_group": 127, "total": None, "timers": [5]},
    ]


def find(operator: str) -> Operator:
    return types().open(classes=GUEST).operator(operator)


def test_values_with_ttl_are_structs() -> None:
    schema = find("ttl-states").schema
    last_access = ("ttl_last_access", pa.timestamp("ms", tz="UTC"))
    assert schema.field("sum").type == pa.struct([("value", pa.int64()), last_access])
    assert [each.name for each in schema.field("list").type.value_type] == ["value", "ttl_last_access"]
    assert [each.name for each in schema.field("map").type.item_type] == ["value", "ttl_last_access"]


@pytest.mark.parametrize(
    "path", ["sum.ttl_last_access", "sum.value", "list.value.number", "map.value.ttl_last_access", "state_key"]
)
def test_fields_can_be_chosen(path: str) -> None:
    name, *steps = path.split(".")
    whole, part = (
        to_list(find("ttl-states").to_arrow(OperatorTableOptions(columns=columns))) for columns in ((name,), (path,))
    )

    def cut(value: Any, steps: list[str]) -> Any:
        if not steps or value is None:
            return value
        if isinstance(value, list):
            # Elements, or entries of a map, of which the path names the value.
            pairs = bool(value) and isinstance(value[0], list)
            return (
                [[key, cut(each, steps[1:])] for key, each in value] if pairs else [cut(each, steps) for each in value]
            )
        return {steps[0]: cut(value[steps[0]], steps[1:])}

    assert part == [{name: cut(row[name], steps)} for row in whole]


def test_only_some_key_groups_are_read() -> None:
    operator = orders().open().operator("orders")
    part = operator.to_arrow(key_groups=KeyGroupRange(60, 10))
    assert to_list(part) == [row for row in to_list(operator.to_arrow()) if 60 <= row["key_group"] < 70]


def test_an_operator_without_keyed_state_is_told() -> None:
    with pytest.raises(UsageError, match=r"no keyed state.*stateVarName"):
        find("operator-states").to_arrow()


def test_a_state_that_is_not_there_is_told() -> None:
    with pytest.raises(NotFoundError, match=r"no keyed state other.*sum"):
        find("ttl-states").to_arrow(OperatorTableOptions(states=("other",)))


def change_second(operator: Operator, patch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Give the second subtask another header."""
    (first, (subtask, file)) = operator.keyed_files
    assert isinstance(file, CanonicalFile)
    changed = replace(file, header=replace(file.header, **changes))
    files = (first, (subtask, changed))
    patch.setattr(operator.files, "survey", lambda: (files, {}))


def test_keys_with_different_serializers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = orders().open().operator("orders")
    change_second(operator, monkeypatch, key_serializer=LONG)
    with pytest.raises(UnsupportedError, match="subtasks 0 and 1 hold the state with different serializers"):
        operator.to_arrow()


def test_values_with_different_serializers_are_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = orders().open().operator("orders")
    states = operator.keyed_files[1][1].header.states
    change_second(
        operator,
        monkeypatch,
        states=tuple(
            keyed_state(each.name, "VALUE", LONG, VOID_NAMESPACE) if each.name == "order" else each for each in states
        ),
    )
    table = operator.to_arrow(OperatorTableOptions(states=("order", "history")))
    assert set(table.schema.names) == {*KEYS, "order_bytes", "history", "reason"}
    assert len(table) == 200
    assert "different serializers" in table["reason"][0].as_py()
