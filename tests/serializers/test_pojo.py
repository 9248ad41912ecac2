from __future__ import annotations

import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import FormatError
from state_pipelines.serializers import build
from state_pipelines.serializers.registry import read_nested, write_nested
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import ListOf, Opaque, Pojo, PojoField, PojoSubclass
from tests.serializers.literals import (
    BASE,
    LONG,
    POJO_CLASS,
    STRING,
    UNKNOWN_CLASS,
    composite,
    frame,
    optional_map,
    utf,
    versioned,
)


def field(name: str, serializer: bytes | None, declaring_class: str | None = "com.acme.Order") -> bytes:
    key = None if declaring_class is None else utf(declaring_class) + utf(name)
    return utf(name) + frame(key) + frame(serializer)


def subclass(name: str, serializer: bytes | None, resolved: bool = True) -> bytes:
    return utf(name) + frame(b"" if resolved else None) + frame(serializer)


def snapshot(fields: bytes, registered: bytes = optional_map(), others: bytes = optional_map()) -> bytes:
    return versioned(POJO_CLASS, 2, utf("com.acme.Order") + fields + registered + others)


def read(data: bytes) -> Pojo:
    reader = Reader(data, "file")
    pojo = read_nested(reader)
    reader.expect_end("the snapshot")
    assert isinstance(pojo, Pojo)
    return pojo


def rewrite(data: bytes) -> bytes:
    writer = Writer()
    write_nested(writer, read(data))
    return writer.getvalue()


ORDER = snapshot(optional_map(field("amount", LONG), field("id", STRING)))


def test_fields_keep_the_order_of_the_snapshot() -> None:
    assert [each.name for each in read(ORDER).fields] == ["amount", "id"]


def test_pojo_equals_the_one_built_from_scratch() -> None:
    assert read(ORDER) == build.pojo("com.acme.Order", {"id": build.basic("String"), "amount": build.basic("Long")})


def test_pojo_is_written_byte_for_byte() -> None:
    assert rewrite(ORDER) == ORDER


def test_inherited_fields_name_the_class_that_declares_them() -> None:
    pojo = read(snapshot(optional_map(field("id", LONG, "com.acme.Base"))))
    assert pojo.fields == (PojoField(name="id", declaring_class="com.acme.Base", serializer=build.basic("Long")),)


UNRESOLVED = snapshot(
    optional_map(field("missing-field-at-0", LONG, None), field("id", None)),
    optional_map(subclass("com.acme.Gone", None, resolved=False)),
)


def test_unresolved_parts_are_kept() -> None:
    pojo = read(UNRESOLVED)
    assert [(each.declaring_class, each.serializer is None) for each in pojo.fields] == [
        (None, False),
        ("com.acme.Order", True),
    ]
    assert pojo.registered == (PojoSubclass(class_name="com.acme.Gone", serializer=None, resolved=False),)


def test_unresolved_parts_are_written_byte_for_byte() -> None:
    assert rewrite(UNRESOLVED) == UNRESOLVED


SUBCLASSED = snapshot(
    optional_map(), optional_map(subclass("com.acme.B", LONG), subclass("com.acme.A", STRING)), optional_map()
)


def test_registered_subclasses_keep_the_order_of_their_tags() -> None:
    assert [each.class_name for each in read(SUBCLASSED).registered] == ["com.acme.B", "com.acme.A"]


def test_subclasses_are_written_byte_for_byte() -> None:
    assert rewrite(SUBCLASSED) == SUBCLASSED


UNKNOWN = versioned(UNKNOWN_CLASS, 7, b"\xde\xad")
WITH_UNKNOWN = snapshot(optional_map(field("amount", UNKNOWN), field("id", STRING)))


def test_an_unknown_field_serializer_is_opaque() -> None:
    amount = read(WITH_UNKNOWN).fields[0].serializer
    assert amount == Opaque(
        snapshot_class=UNKNOWN_CLASS, snapshot_version=7, unknown_class=UNKNOWN_CLASS, raw=b"\xde\xad"
    )


def test_fields_behind_an_unknown_one_are_read() -> None:
    assert describe(read(WITH_UNKNOWN)) == f"Pojo<com.acme.Order>(amount: Opaque<{UNKNOWN_CLASS}>, id: String)"


def test_an_unknown_field_serializer_is_written_byte_for_byte() -> None:
    assert rewrite(WITH_UNKNOWN) == WITH_UNKNOWN


NESTED_UNKNOWN = snapshot(
    optional_map(field("amounts", versioned(f"{BASE}ListSerializerSnapshot", 3, composite(1, b"", UNKNOWN))))
)


def test_an_unknown_class_inside_a_known_one_ends_where_the_frame_of_the_field_does() -> None:
    amounts = read(NESTED_UNKNOWN).fields[0].serializer
    assert isinstance(amounts, ListOf)
    assert amounts.element == Opaque(
        snapshot_class=UNKNOWN_CLASS, snapshot_version=7, unknown_class=UNKNOWN_CLASS, raw=b"\xde\xad"
    )


def test_a_known_class_around_an_unknown_one_is_written_byte_for_byte() -> None:
    assert rewrite(NESTED_UNKNOWN) == NESTED_UNKNOWN


def test_bytes_left_in_a_frame_are_an_error() -> None:
    with pytest.raises(FormatError, match="1 bytes are left over"):
        read(snapshot(optional_map(field("id", LONG + b"\0"))))


def test_a_field_under_another_name_is_an_error() -> None:
    entry = utf("id") + frame(utf("com.acme.Order") + utf("key")) + frame(LONG)
    with pytest.raises(FormatError, match="'id' names the field 'key'"):
        read(snapshot(optional_map(entry)))
