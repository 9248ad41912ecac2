"""Values that Kryo wrote go through migrations of what is beside them, byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.codecs.kryo import load_classes
from state_pipelines.codecs.serializer_layouts import OpaqueValues
from state_pipelines.errors import UnsupportedError
from state_pipelines.operations.migration import Direction, parse_migration
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import basic, pojo
from state_pipelines.snapshot import Declarations, open_snapshot
from state_pipelines.snapshot.operator_state import NonKeyedState
from state_pipelines.spark import migrate
from state_pipelines.spark.fieldwise import split_rows
from state_pipelines.spark.migration_run import plan_snapshot
from tests.snapshot.built import build_snapshot, list_operator
from tests.snapshots import CLASSES

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.snapshot import Snapshot
    from state_pipelines.spark import MigrationResult

pytestmark = pytest.mark.spark

INT = basic("Int")

UIDS = ("op-values", "op-lists", "op-maps", "op-kryo", "op-state")
FIELDS = [
    {"rename": {"name": "fullName", "counters": "counts"}},
    {"add": {"field": "tier", "type": "int", "default": 3}},
    {"cast": {"field": "age", "to": "long"}},
    {"drop": {"field": "nickname"}},
    {"cast": {"field": "address.zip", "to": "long"}},
    {"cast": {"field": "addresses[].zip", "to": "long"}},
]
BACK = [
    {"cast": {"field": "address.zip", "to": "int"}},
    {"cast": {"field": "addresses[].zip", "to": "int"}},
    {"add": {"field": "nickname", "type": "String", "default": None}},
    {"cast": {"field": "age", "to": "int"}},
    {"drop": {"field": "tier"}},
    {"rename": {"fullName": "name", "counts": "counters"}},
]
LOST = [{"field": "nickname", "reason": "nobody reads it"}]
STATES = (("op-values", "v_pojo"), ("op-lists", "l_pojo"), ("op-maps", "m_str_pojo"), ("op-state", "os_union"))


def change(operator: str, state: str | None, upgrade: list[Any], downgrade: Any = None, **others: Any) -> Any:
    subject = {} if state is None else {"state": state}
    back = downgrade or {"impossible": "it is not needed"}
    return {"operator": operator, **subject, "upgrade": upgrade, "downgrade": back, **others}


@pytest.fixture(scope="module")
def old(fixtures: Path) -> Snapshot:
    (metadata,) = (fixtures / "made/1.20.5/main-hashmap-canonical").glob("*/_metadata")
    # Only the fields of its class say where a Kryo value in a list ends.
    return open_snapshot(str(metadata.parent), Declarations(uids=UIDS, classes=load_classes(CLASSES)))


@pytest.fixture(scope="module")
def changed(spark: SparkSession, old: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> MigrationResult:
    """All steps on values, and on lists and maps, which have the same POJO, those on its own fields."""
    own = FIELDS[:4], BACK[2:]
    steps = {"l_pojo": own, "m_str_pojo": own}
    changes = [change(*each, *steps.get(each[1], (FIELDS, BACK)), loss=LOST) for each in STATES]
    migration = parse_migration({"revision": "1", "changes": changes})
    return migrate(old, migration, str(tmp_path_factory.mktemp("opaque") / "target"))


def values(snapshot: Snapshot, operator: str, state: str) -> list[dict[str, Any]]:
    """Payloads of a state with the bytes of opaque fields, in the order of their keys."""
    found = snapshot.operator(operator).state(state)
    if not found.is_keyed:
        raise AssertionError(operator)
    rows = []
    for split in split_rows(snapshot.operator(operator), state, OpaqueValues.ALL):
        for batch in split.batches():
            rows += batch.to_pylist()
    column = next(name for name in ("list_value", "map_value", "value") if name in rows[0])
    rows.sort(
        key=lambda row: (row["key_group"], repr(row["state_key"]), row.get("list_index"), repr(row.get("map_key")))
    )
    return [row[column] for row in rows]


@pytest.mark.parametrize(("operator", "state"), STATES[:3])
def test_the_bytes_of_kryo_fields_stay_while_other_fields_change(
    old: Snapshot, changed: MigrationResult, operator: str, state: str
) -> None:
    before, after = values(old, operator, state), values(changed.snapshot, operator, state)
    assert len(before) == len(after) > 10
    for one, other in zip(before, after, strict=True):
        if one is None:
            assert other is None
            continue
        assert other["counts"] == one["counters"]
        assert set(one["counters"] or {"@bytes"}) == {"@bytes"}
        assert all(other[name] == one[name] for name in ("birthday", "lastSeen", "tags", "score"))
        assert (other["fullName"], other["age"], other["tier"]) == (one["name"], one["age"], 3)
        assert (other["address"], other["addresses"]) == (one["address"], one["addresses"])


def test_the_proof_compares_opaque_fields(changed: MigrationResult) -> None:
    assert changed.proof is not None
    (check,) = [each for each in changed.proof.checks if each.name == "round_trip"]
    assert check.ok
    assert "counters" in check.observed


def test_sql_sees_opaque_fields_decoded_while_their_bytes_stay(
    spark: SparkSession, old: Snapshot, tmp_path: Path
) -> None:
    size = {"field": "size", "type": "int", "expression": "length(counters)"}
    keep = {"filter": {"keep": "counters IS NOT NULL", "reason": "nothing was counted"}}
    key = {"key": {"type": "String", "expression": "concat('new ', state_key)"}}
    changes = [
        change("op-values", "v_pojo", [keep, {"add": size}], [{"drop": {"field": "size"}}]),
        change("op-kryo", "v_generic", [{"filter": {"keep": "a % 2 = 0", "reason": "odd"}}], []),
        change("op-kryo", "l_generic", [{"kind": {"to": "VALUE", "expression": "values[0]"}}]),
        change("op-kryo", None, [key]),
    ]
    snapshot = migrate(old, parse_migration({"revision": "1", "changes": changes}), str(tmp_path / "t")).snapshot
    before = [each for each in values(old, "op-values", "v_pojo") if each["counters"] is not None]
    after = values(snapshot, "op-values", "v_pojo")
    assert [each["counters"] for each in after] == [each["counters"] for each in before]
    assert all(each["size"] > 5 for each in after)
    firsts = [
        row
        for split in split_rows(old.operator("op-kryo"), "l_generic")
        for b in split.batches()
        for row in b.to_pylist()
    ]
    wanted = sorted(row["list_value"]["@bytes"] for row in firsts if row["list_index"] == 0)
    assert sorted(each["@bytes"] for each in values(snapshot, "op-kryo", "l_generic")) == wanted
    kept = {each["@bytes"] for each in values(snapshot, "op-kryo", "v_generic")}
    assert kept < {each["@bytes"] for each in values(old, "op-kryo", "v_generic")}
    assert kept


KRYO = tree.Kryo(type_class="java.util.Map")
STOP = pojo("shop.Stop", {"notes": KRYO, "zip": INT})
PARCEL = pojo("shop.Parcel", {"first": STOP, "weight": INT})
UNKNOWN = tree.Opaque(snapshot_class="acme.Snapshot", snapshot_version=1, unknown_class="acme.Snapshot", raw=b"")


def present(data: bytes) -> bytes:
    """A field of a POJO that is not null."""
    return b"\0" + data


def exact(*fields: bytes) -> bytes:
    """A POJO."""
    return b"\2" + b"".join(fields)


def number(value: int, size: int = 4) -> bytes:
    return value.to_bytes(size, "big")


def elements(snapshot: Snapshot) -> list[bytes]:
    state = snapshot.operator("shop").state("list")
    assert isinstance(state, NonKeyedState)
    found = []
    for subtask_state in state.subtask_states:
        data, starts, ends = subtask_state.elements()
        found += [data[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]
    return found


def test_opaque_fields_of_inner_objects_and_null_ones_are_passed_on(spark: SparkSession, tmp_path: Path) -> None:
    """A Kryo value of a class with unknown fields: an empty HashMap, by name, and one with an entry."""
    notes = b"\1\0java.util.HashMa\xf0\1\0"
    olds = [
        exact(present(exact(present(notes), present(number(5)))), present(number(1))),
        exact(present(exact(b"\1", present(number(6)))), present(number(2))),
        exact(b"\1", present(number(3))),
    ]
    (tmp_path / "old").mkdir()
    snapshot = build_snapshot(tmp_path / "old", list_operator("shop", "list", olds, serializer=PARCEL), uids=["shop"])
    steps = [{"cast": {"field": "first.zip", "to": "long"}}, {"rename": {"first.zip": "code"}}]
    back = [{"rename": {"first.code": "zip"}}, {"cast": {"field": "first.zip", "to": "int"}}]
    migration = parse_migration({"revision": "1", "changes": [change("shop", "list", steps, back)]})
    new = migrate(snapshot, migration, str(tmp_path / "new")).snapshot
    assert elements(new) == [
        exact(present(exact(present(number(5, 8)), present(notes))), present(number(1))),
        exact(present(exact(present(number(6, 8)), b"\1")), present(number(2))),
        exact(b"\1", present(number(3))),
    ]


def test_values_of_an_unknown_serializer_are_passed_on_where_their_end_is_known(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "old").mkdir()
    of = pojo("shop.Parcel", {"weight": INT, "z": UNKNOWN})
    olds = [exact(present(number(1)), present(b"anything")), exact(present(number(2)), b"\1")]
    snapshot = build_snapshot(tmp_path / "old", list_operator("shop", "list", olds, serializer=of), uids=["shop"])
    steps = [{"cast": {"field": "weight", "to": "long"}}]
    migration = parse_migration({"revision": "1", "changes": [change("shop", "list", steps)]})
    new = migrate(snapshot, migration, str(tmp_path / "new")).snapshot
    assert elements(new) == [
        exact(present(number(1, 8)), present(b"anything")),
        exact(present(number(2, 8)), b"\1"),
    ]


def test_values_of_an_unknown_serializer_in_the_middle_are_refused_before_anything_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "old").mkdir()
    of = pojo("shop.Parcel", {"a": UNKNOWN, "weight": INT})
    snapshot = build_snapshot(tmp_path / "old", list_operator("shop", "list", [b"?"], serializer=of), uids=["shop"])
    migration = parse_migration({"revision": "1", "changes": [change("shop", "list", [{"rename": {"weight": "w"}}])]})
    with pytest.raises(UnsupportedError, match=r"acme\.Snapshot"):
        plan_snapshot(snapshot, [(migration, Direction.UPGRADE)])
