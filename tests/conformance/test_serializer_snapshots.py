"""The tables of `docs/serializer-snapshots.md` are those of the readers that are registered."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import find_surrogate, plan_columns, walk_layout
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.plugins import load_plugins
from state_pipelines.serializers import registry, tree
from state_pipelines.serializers.build import basic, pojo
from state_pipelines.serializers.java_types import SNAPSHOT_CLASSES
from state_pipelines.serializers.registry import read_nested
from state_pipelines.serializers.tree import walk
from tests.connectors.test_kafka_producer import state_serializer
from tests.serializers import test_families, test_table
from tests.serializers.javacoders import coder, legacy_snapshot, unversioned_snapshot
from tests.serializers.literals import LONG, composite, versioned

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/serializer-snapshots.md").read_text()
READ, _, NOT_READ = PAGE.partition("## Not read")
ROW = re.compile(r"\| `([^`]+)` \| ([^|]+) \| ([^|]+) \| `([^`]+)` \|")
# Where tests register families of their own.
OFFICIAL = "org.apache."


@dataclass(frozen=True)
class Row:
    """A row of the table of classes that are read."""

    snapshot_class: str
    where: str
    data: str
    test: str


ROWS = [Row(*match.groups()) for match in ROW.finditer(READ)]
BY_CLASS = {row.snapshot_class: row for row in ROWS}


# Composites without data of their own that no other test has, and how many serializers they nest.
FLINK = "org.apache.flink."
ARITIES = {
    f"{FLINK}streaming.api.datastream.CoGroupedStreams$UnionSerializerSnapshot": 2,
    f"{FLINK}streaming.api.operators.co.IntervalJoinOperator$BufferEntrySerializerSnapshot": 1,
    f"{FLINK}streaming.runtime.streamrecord.StreamElementSerializer$StreamElementSerializerSnapshot": 1,
    f"{FLINK}runtime.state.v2.ttl.TtlStateFactory$TtlSerializerSnapshot": 2,
    f"{FLINK}table.runtime.typeutils.WindowKeySerializer$WindowKeySerializerSnapshot": 1,
    f"{FLINK}table.runtime.sequencedmultisetstate.linked.MetaSqnInfoSerializer$MetaSqnInfoSerializerSnapshot": 2,
    f"{FLINK}table.runtime.sequencedmultisetstate.linked.RowSqnInfoSerializer$RowSqnInfoSerializerSnapshot": 2,
    f"{FLINK}table.runtime.sequencedmultisetstate.linked.NodeSerializer$NodeSerializerSnapshot": 6,
    **{
        f"{FLINK}{package}.typeutils.{name}SerializerSnapshot": arity
        for package in ("api.scala", "table.api")
        for name, arity in (("ScalaEither", 2), ("ScalaOption", 1), ("ScalaTry", 2))
    },
}


def samples() -> list[tree.Serializer]:
    """Serializers of most families: snapshots of the tests of each, and all that they nest."""
    snapshots = [data for data, _ in (*test_families.SNAPSHOTS.values(), *test_table.SNAPSHOTS.values())]
    snapshots += [versioned(name, 3, composite(1, b"", *[LONG] * arity)) for name, arity in ARITIES.items()]
    snapshots += [make(coder("VarLongCoder")) for make in (legacy_snapshot, unversioned_snapshot)]
    outermost = [read_nested(Reader(data)) for data in snapshots]
    outermost += [state_serializer("FlinkKafkaProducer"), state_serializer("FlinkKafkaProducer011")]
    outermost += [
        *map(basic, SNAPSHOT_CLASSES),
        pojo("shop.Order", {}),
        tree.Avro(runtime_class="", schema_json='"int"'),
    ]
    found = {node.snapshot_class: node for serializer in outermost for node in walk(serializer)}
    return [node for name, node in sorted(found.items()) if name.startswith(OFFICIAL)]


SAMPLES = samples()


def data_of(node: tree.Serializer) -> str:
    """The word of the table for the data of a serializer."""
    if isinstance(node, tree.Basic) and node.kind == "Nothing":
        return "none"
    layout = derive_layout(node, LayoutContext())
    scalar = [
        each for each in walk_layout(layout) if isinstance(each, lay.Dynamic) and find_surrogate(each) is not None
    ]
    if any(isinstance(each.serializer, tree.ClassBound) for each in scalar):
        return "bytes"
    if any(not isinstance(each.serializer, tree.Kryo) for each in scalar):
        return "JSON"
    plan_columns(layout)
    return "columns"


def registered_classes() -> frozenset[str]:
    """Names of all snapshot classes with a reader, plug-ins included."""
    load_plugins(registry.ENTRY_POINT_GROUP, "serializer")
    return frozenset(registry._functions)


def test_the_table_names_every_class_with_a_reader_and_no_other() -> None:
    assert {row.snapshot_class for row in ROWS} == {name for name in registered_classes() if name.startswith(OFFICIAL)}


def test_the_table_names_each_class_once_in_order() -> None:
    names = [row.snapshot_class for row in ROWS]
    assert names == sorted(set(names))


def test_no_class_that_is_not_read_has_a_reader() -> None:
    named = re.findall(r"^\| `([\w.$]+)` ", NOT_READ.partition("## State")[0], re.MULTILINE)
    assert named
    assert not registered_classes() & set(named)


@pytest.mark.parametrize("test", sorted({row.test for row in ROWS}))
def test_the_tests_exist(test: str) -> None:
    assert (ROOT / test).is_file()


@pytest.mark.parametrize("node", SAMPLES, ids=lambda node: node.snapshot_class)
def test_the_data_are_decoded_as_the_table_says(node: tree.Serializer) -> None:
    assert BY_CLASS[node.snapshot_class].data == data_of(node)


def test_most_classes_have_a_sample() -> None:
    assert len(SAMPLES) > 0.8 * len(ROWS)
