from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.binary.data_views import Writer
from state_pipelines.errors import UsageError
from state_pipelines.serializers import build
from state_pipelines.serializers.registry import write_nested
from tests.serializers.literals import BASE, LONG, RUNTIME, STRING, composite, i32, utf, versioned

if TYPE_CHECKING:
    from state_pipelines.serializers.tree import Serializer

long, string = build.basic("Long"), build.basic("String")


@pytest.mark.parametrize(
    ("serializer", "snapshot"),
    [
        (build.list_of(long), versioned(f"{BASE}ListSerializerSnapshot", 3, composite(1, b"", LONG))),
        (build.map_of(string, long), versioned(f"{BASE}MapSerializerSnapshot", 3, composite(1, b"", STRING, LONG))),
        (
            build.tuple_of(long),
            versioned(
                f"{RUNTIME}TupleSerializerSnapshot",
                3,
                composite(2, utf("org.apache.flink.api.java.tuple.Tuple1"), LONG),
            ),
        ),
        (
            build.nullable(string),
            versioned(f"{RUNTIME}NullableSerializer$NullableSerializerSnapshot", 3, composite(2, i32(0), STRING)),
        ),
        (
            build.row(long),
            versioned(f"{RUNTIME}RowSerializer$RowSerializerSnapshot", 3, composite(4, b"\1", LONG)),
        ),
        (
            build.timer(string, long),
            versioned(
                "org.apache.flink.streaming.api.operators.TimerSerializerSnapshot", 3, composite(2, b"", STRING, LONG)
            ),
        ),
        (
            build.ttl(string),
            versioned(
                "org.apache.flink.runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot",
                3,
                composite(2, b"", LONG, STRING),
            ),
        ),
        (
            build.VOID_NAMESPACE,
            versioned("org.apache.flink.runtime.state.VoidNamespaceSerializer$VoidNamespaceSerializerSnapshot", 3),
        ),
    ],
    ids=["list", "map", "tuple", "nullable", "row", "timer", "ttl", "void namespace"],
)
def test_snapshots_have_the_classes_and_versions_of_current_releases(serializer: Serializer, snapshot: bytes) -> None:
    writer = Writer()
    write_nested(writer, serializer)
    assert writer.getvalue() == snapshot


def test_pojo_fields_are_sorted_as_java_sorts_strings() -> None:
    # U+FF5E comes before U+1F600 by code point, but behind its surrogates.
    pojo = build.pojo("A", dict.fromkeys(("b", "\uff5e", "a", "\U0001f600", "B"), long))
    assert [field.name for field in pojo.fields] == ["B", "a", "b", "\U0001f600", "\uff5e"]


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'Integer' is not a basic serializer. Known: .*Int"):
        build.basic("Integer")


@pytest.mark.parametrize("size", [0, 26])
def test_tuples_have_1_to_25_fields(size: int) -> None:
    with pytest.raises(UsageError, match="1 to 25"):
        build.tuple_of(*[long] * size)
