"""POJO snapshots: fields by name, registered and non-registered subclasses, each in a frame of its own.

The frames give the end of an unknown snapshot class, which becomes an `Opaque`.
Source: `PojoSerializerSnapshot`, `PojoSerializerSnapshotData`, `PojoFieldUtils`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Writer
from state_pipelines.errors import UnknownSerializerError
from state_pipelines.serializers.body_ends import current_reading, read_settled
from state_pipelines.serializers.registry import read_nested, register, write_nested
from state_pipelines.serializers.snapshot_frames import Head, read_head, read_optional_map, write_optional_map
from state_pipelines.serializers.tree import Opaque, Pojo, PojoField, PojoSubclass, Serializer

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader

VERSION = 2


def write_pojo(writer: Writer, node: Pojo) -> None:
    """Write what `read_pojo` reads."""
    writer.utf(node.pojo_class)
    write_optional_map(writer, map(_field_entry, node.fields))
    write_optional_map(writer, map(_subclass_entry, node.registered))
    write_optional_map(writer, map(_subclass_entry, node.non_registered))


@register("org.apache.flink.api.java.typeutils.runtime.PojoSerializerSnapshot", write=write_pojo)
def read_pojo(reader: Reader, head: Head) -> Pojo:
    """Read the class name and the three maps."""
    head.expect(VERSION)
    return Pojo(
        **head.marks,
        pojo_class=reader.utf(),
        fields=tuple(_read_field(*entry) for entry in read_optional_map(reader)),
        registered=tuple(_read_subclass(*entry) for entry in read_optional_map(reader)),
        non_registered=tuple(_read_subclass(*entry) for entry in read_optional_map(reader)),
    )


def _read_field(name: str, key: Reader | None, value: Reader | None) -> PojoField:
    declaring_class = None
    if key is not None:
        declaring_class = key.utf()
        start = key.position
        field_name = key.utf()
        if field_name != name:
            raise key.error(f"the entry {name!r} holds the field {field_name!r}", start)
        key.expect_end(f"the field {name}")
    return PojoField(name=name, declaring_class=declaring_class, serializer=_read_framed(value))


def _field_entry(field: PojoField) -> tuple[str, bytes | None, bytes | None]:
    key = None
    if field.declaring_class is not None:
        writer = Writer()
        writer.utf(field.declaring_class)
        writer.utf(field.name)
        key = writer.getvalue()
    return field.name, key, _framed(field.serializer)


def _read_subclass(name: str, key: Reader | None, value: Reader | None) -> PojoSubclass:
    if key is not None:
        key.expect_end(f"the empty key frame of the subclass {name}")
    return PojoSubclass(class_name=name, serializer=_read_framed(value), resolved=key is not None)


def _subclass_entry(subclass: PojoSubclass) -> tuple[str, bytes | None, bytes | None]:
    return subclass.class_name, b"" if subclass.resolved else None, _framed(subclass.serializer)


def _read_framed(frame: Reader | None) -> Serializer | None:
    if frame is None:
        return None
    start = frame.position
    state = current_reading()

    def read(framed: Reader) -> Serializer:
        serializer = read_nested(framed)
        framed.expect_end(f"the snapshot {serializer.snapshot_class}")
        return serializer

    try:
        declared = () if state is None else tuple(state.declared.values())
        return read_settled(read, frame.data, frame.name, start=start, end=frame.end, declared=declared)[0]
    except UnknownSerializerError as error:
        return _read_opaque(frame, start, error.where.offset)


def _read_opaque(frame: Reader, start: int, unknown_at: int | None) -> Opaque:
    frame.position = start if unknown_at is None else unknown_at
    unknown_class = read_head(frame).snapshot_class
    frame.position = start
    head = read_head(frame)
    return Opaque(**head.marks, unknown_class=unknown_class, raw=frame.take(frame.remaining))


def _framed(serializer: Serializer | None) -> bytes | None:
    if serializer is None:
        return None
    writer = Writer()
    write_nested(writer, serializer)
    return writer.getvalue()
