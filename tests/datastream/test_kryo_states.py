"""Live state with values of Kryo: restored values are read and written as their snapshot has them, new ones as told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import state_pipelines as sp
from state_pipelines.codecs.java import CollectionKind, CollectionValue, ObjectValue
from state_pipelines.codecs.kryo import load_classes
from state_pipelines.datastream import (
    KeyedProcessFunction,
    KeyedProcessOperator,
    ListStateDescriptor,
    RestoredState,
    Types,
    ValueStateDescriptor,
    make_layouts,
    write_savepoint,
)
from state_pipelines.errors import UsageError
from state_pipelines.javaclasses import load_field_lists
from state_pipelines.operations.auditing import audit_snapshot
from state_pipelines.operations.write.savepoint_plan import has_kryo
from state_pipelines.serializers.tree import Kryo

if TYPE_CHECKING:
    from state_pipelines.datastream import RuntimeContext
    from state_pipelines.snapshot import Snapshot

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "upgrade"
(SAVEPOINT,) = (EXAMPLE / "savepoint").iterdir()
VISIT = {"articles": ["article-9"], "millis": 5, "page": "new"}
UID = "customers"
CLASSES = load_classes("final com.acme.Point: [x: int, tags: List<String>]")
POINT = Types.of(Kryo(type_class="com.acme.Point"))


def open_example() -> Snapshot:
    """Flink 1.20's savepoint: `visits` is a list of a class that Kryo 2 has written."""
    return sp.open_snapshot(str(SAVEPOINT), classes=load_field_lists([EXAMPLE / "classes.yaml"]), uids=[UID])


class AddVisit(KeyedProcessFunction):
    """Adds the element to the restored list, and emits it."""

    def __init__(self, snapshot: Snapshot) -> None:
        element = find_operator(snapshot).state("visits").serializer.nested[0]
        self.descriptor = ListStateDescriptor("visits", element)

    def open(self, runtime_context: RuntimeContext) -> None:
        self.visits = runtime_context.get_list_state(self.descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        articles = CollectionValue("java.util.ArrayList", CollectionKind.LIST, ("article-9",))
        self.visits.add(ObjectValue("com.acme.shop.Visit", (("articles", articles), ("millis", 5), ("page", "new"))))
        yield [dict(each.fields)["page"] for each in self.visits.get()]


class AddRowVisit(AddVisit):
    """The same for rows."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        for pages in super().process_element(value, ctx):
            yield (pages,)


def find_operator(snapshot: Snapshot) -> Any:
    return next(each for each in snapshot.operators if any(state.name == "visits" for state in each.states))


def test_restored_values_of_kryo_2_are_read_and_written_as_such(tmp_path: Path) -> None:
    snapshot = open_example()
    old = find_operator(snapshot)
    operator = KeyedProcessOperator(AddVisit(snapshot), lambda value: value, Types.STRING())
    operator.open(RestoredState.of(old))
    with operator:
        (pages,) = operator.process("customer-14")
        assert pages == ["page-14", "page-34", "page-54", "new"]
        assert operator.kryo_version == 2
        written = write_savepoint(str(tmp_path / "savepoint"), {UID: [operator]})
    assert written.metadata.version == 4
    again = sp.open_snapshot(written.path, classes=load_field_lists([EXAMPLE / "classes.yaml"]))
    rows = again.operator(UID).state("visits").to_arrow().to_pylist()
    assert [row["list_value"] for row in rows if row["state_key"] == "customer-14"][-1] == VISIT
    old_rows = [row["list_value"] for row in old.state("visits").to_arrow().to_pylist()]
    assert len(rows) == len(old_rows) + 1
    assert not audit_snapshot(again, depth="whole").findings


class KeepPoint(KeyedProcessFunction):
    """Keeps a point of a class that Kryo writes."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.point = runtime_context.get_state(ValueStateDescriptor("point", POINT))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        tags = CollectionValue("java.util.ArrayList", CollectionKind.LIST, ("new",))
        self.point.update(ObjectValue("com.acme.Point", (("tags", tags), ("x", len(value)))))


class KeepRowPoint(KeepPoint):
    """The same for rows."""


def keep_point(**layouts: Any) -> KeyedProcessOperator:
    operator = KeyedProcessOperator(
        KeepPoint(), lambda value: value, Types.STRING(), layouts=make_layouts(CLASSES, **layouts)
    )
    operator.open()
    operator.process("key")
    return operator


@pytest.mark.parametrize(("release", "version"), [("1.20", 4), ("2.2", 5), (None, 5)])
def test_new_values_are_written_as_the_release_of_the_metadata_reads_them(
    tmp_path: Path, release: str | None, version: int
) -> None:
    with keep_point(flink_version=release) as operator:
        written = write_savepoint(str(tmp_path / "savepoint"), {"points": [operator]})
    assert written.metadata.version == version
    again = sp.open_snapshot(written.path, classes=CLASSES)
    (row,) = again.operator("points").state("point").to_arrow().to_pylist()
    assert row["value"] == {"x": 3, "tags": ["new"]}
    assert not audit_snapshot(again, depth="whole").findings


def test_without_values_of_kryo_every_release_reads_the_savepoint(tmp_path: Path) -> None:
    class Count(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None: ...

    with KeyedProcessOperator(Count(), lambda value: value, Types.STRING()) as operator:
        assert not has_kryo(operator.list_serializers())
        assert write_savepoint(str(tmp_path / "savepoint"), {"count": [operator]}).metadata.version == 4


def test_values_of_two_release_lines_do_not_go_into_one_savepoint(tmp_path: Path) -> None:
    with keep_point(flink_version="1.20") as old, keep_point(flink_version="2.2") as new:
        with pytest.raises(UsageError, match=r"different versions of Kryo .* a: Kryo 2, b: Kryo 5"):
            write_savepoint(str(tmp_path / "both"), {"a": [old], "b": [new]})
        with pytest.raises(UsageError, match=r"points: Kryo 5; the base is of Flink 1\.x"):
            write_savepoint(str(tmp_path / "added"), {"points": [new]}, base=open_example())
        assert not list(tmp_path.iterdir())
        added = write_savepoint(str(tmp_path / "added"), {"points": [old]}, base=open_example())
    assert added.metadata.version == open_example().metadata.version


def test_the_line_of_a_snapshot_is_not_chosen_again() -> None:
    snapshot = open_example()
    assert make_layouts(snapshot=snapshot).kryo_version == 2
    assert make_layouts(snapshot=snapshot).classes == snapshot.classes
    with pytest.raises(UsageError, match=r"the metadata of Flink 1\.x, and flink_version is 2\.2"):
        make_layouts(flink_version="2.2", snapshot=snapshot)
