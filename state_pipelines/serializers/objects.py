"""Snapshots of Java objects: POJO, Kryo, Avro and Protobuf.

A POJO snapshot frames its fields and its subclasses one by one, so that an unknown snapshot class among them becomes an
`Opaque`. A Kryo snapshot holds the type class and the registrations that fix Kryo's class ids; its bytes do not
identify the release of Kryo (2.24 in Flink 1.x, 5 in Flink 2.x) that wrote the data. Avro snapshots hold the runtime
class and the writer schema, those of flink-datastream-protobuf the descriptors of the messages.
Source: `PojoSerializerSnapshot`, `PojoSerializerSnapshotData`, `PojoFieldUtils`, `KryoSerializerSnapshot`,
`KryoSerializerSnapshotData`, `KryoRegistrationUtil`, `org.apache.flink.formats.avro.typeutils.AvroSerializerSnapshot`,
`io.github.flink.gcp.protobuf.ProtobufTypeSerializerSnapshot`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Writer
from state_pipelines.errors import UnknownSerializerError
from state_pipelines.serializers.registry import read_nested, register, write_nested
from state_pipelines.serializers.snapshot_classes import current_reading, read_settled
from state_pipelines.serializers.snapshot_frames import Head, read_head, read_optional_map, write_optional_map
from state_pipelines.serializers.tree import (
    Avro,
    Kryo,
    KryoRegistration,
    Opaque,
    Pojo,
    PojoField,
    PojoSubclass,
    Protobuf,
    Serializer,
)

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader

# Version 1 holds the schema only, 2 adds the class, 3 writes both as Flink strings, which have no limit of 65535 bytes.
SCHEMA_ONLY, SHORT_STRINGS, CURRENT = 1, 2, 3


def write_avro(writer: Writer, node: Avro) -> None:
    """Write what `read_avro` reads."""
    if node.snapshot_version == SCHEMA_ONLY:
        writer.utf(node.schema_json)
    elif node.snapshot_version == SHORT_STRINGS:
        writer.utf(node.runtime_class)
        writer.utf(node.schema_json)
    else:
        writer.vstr(node.runtime_class)
        writer.vstr(node.schema_json)


@register("org.apache.flink.formats.avro.typeutils.AvroSerializerSnapshot", write=write_avro)
def read_avro(reader: Reader, head: Head) -> Avro:
    """Read class and schema; the class is empty in version 1, which does not store it."""
    head.expect(SCHEMA_ONLY, SHORT_STRINGS, CURRENT)
    if head.version == SCHEMA_ONLY:
        return Avro(**head.marks, runtime_class="", schema_json=reader.utf())
    if head.version == SHORT_STRINGS:
        return Avro(**head.marks, runtime_class=reader.utf(), schema_json=reader.utf())
    return Avro(**head.marks, runtime_class=_text(reader), schema_json=_text(reader))


def _text(reader: Reader) -> str:
    start = reader.position
    text = reader.vstr()
    if text is None:
        raise reader.error("an Avro snapshot holds no null strings", start)
    return text


VERSION = 2
_AVRO_ARRAY = "org.apache.avro.generic.GenericData$Array"
_AVRO_SCHEMA = "org.apache.avro.Schema"
_SERIALIZERS = "org.apache.flink.api.java.typeutils.runtime.kryo.Serializers$"
_UNSPECIFIED, _CLASS = 0, 1


@dataclass(frozen=True)
class KryoConfig:
    """Kryo entries of `pipeline.serialization-config`, each kind in the order of the configuration.

    Attributes:
        types: registered classes.
        serializers: registered classes with the class of their Kryo serializer.
        defaults: classes with the class of the default Kryo serializer of them and of their subclasses.
    """

    types: tuple[str, ...] = ()
    serializers: tuple[tuple[str, str], ...] = ()
    defaults: tuple[tuple[str, str], ...] = ()

    def configure(self, type_class: str, like: Kryo | None = None) -> Kryo:
        """Return the Kryo serializer that a job with this configuration makes for a class.

        Source: `KryoSerializer.buildKryoRegistrations`, `AvroUtils.addAvroGenericDataArrayRegistration`.

        Args:
            type_class: the class.
            like: a Kryo serializer of the old job; its entries of Avro tell whether flink-avro is on the class path.
                Default: it is not.
        """
        entries: dict[str, KryoRegistration] = {}
        for name, serializer in ((type_class, ""), *((name, "") for name in self.types), *self.serializers):
            # As in a `LinkedHashMap`, a class that is registered again stays where it is.
            entries[name] = KryoRegistration(class_name=name, resolved=True, value=_write_value(name, serializer))
        defaults = [
            KryoRegistration(class_name=name, resolved=True, value=_write_name(serializer))
            for name, serializer in self.defaults
        ]
        known = () if like is None else like.registrations
        dummy = _write_value(f"{_SERIALIZERS}DummyAvroRegisteredClass", f"{_SERIALIZERS}DummyAvroKryoSerializerClass")
        array = KryoRegistration(class_name=_AVRO_ARRAY, resolved=True, value=dummy)
        entries[_AVRO_ARRAY] = next((each for each in known if each.class_name == _AVRO_ARRAY), array)
        schemas = () if like is None else like.default_serializer_classes
        names = [name for name, _ in self.defaults]
        defaults += [each for each in schemas if each.class_name == _AVRO_SCHEMA and _AVRO_SCHEMA not in names]
        return Kryo(
            type_class=type_class, registrations=tuple(entries.values()), default_serializer_classes=tuple(defaults)
        )


def _write_value(name: str, serializer: str) -> bytes:
    """Encode a `KryoRegistration`: the class, and its serializer by class where there is one."""
    writer = Writer()
    writer.utf(name)
    writer.i32(_CLASS if serializer else _UNSPECIFIED)
    if serializer:
        writer.utf(serializer)
    return writer.getvalue()


def _write_name(name: str) -> bytes:
    writer = Writer()
    writer.utf(name)
    return writer.getvalue()


def write_kryo(writer: Writer, node: Kryo) -> None:
    """Write what `read_kryo` reads."""
    writer.utf(node.type_class)
    for registrations in (node.registrations, node.default_serializers, node.default_serializer_classes):
        write_optional_map(writer, map(_entry, registrations))


@register("org.apache.flink.api.java.typeutils.runtime.kryo.KryoSerializerSnapshot", write=write_kryo)
def read_kryo(reader: Reader, head: Head) -> Kryo:
    """Read the type class, the registrations, and the two maps of default serializers."""
    head.expect(VERSION)
    return Kryo(
        **head.marks,
        type_class=reader.utf(),
        registrations=_read_registrations(reader),
        default_serializers=_read_registrations(reader),
        default_serializer_classes=_read_registrations(reader),
    )


def _read_registrations(reader: Reader) -> tuple[KryoRegistration, ...]:
    return tuple(_read_registration(*entry) for entry in read_optional_map(reader))


def _read_registration(name: str, key: Reader | None, value: Reader | None) -> KryoRegistration:
    if key is not None:
        start = key.position
        class_name = key.utf()
        if class_name != name:
            raise key.error(f"the entry {name!r} holds the class {class_name!r}", start)
        key.expect_end(f"the class {name}")
    return KryoRegistration(
        class_name=name,
        resolved=key is not None,
        value=None if value is None else value.take(value.remaining),
    )


def _entry(registration: KryoRegistration) -> tuple[str, bytes | None, bytes | None]:
    key = _write_name(registration.class_name) if registration.resolved else None
    return registration.class_name, key, registration.value


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


SNAPSHOT_CLASS = "io.github.flink.gcp.protobuf.ProtobufTypeSerializerSnapshot"
_VERSION = _FRAMING = _NORMALIZATION = 1
_DIGEST_SIZE = 32


def write_protobuf(writer: Writer, node: Protobuf) -> None:
    """Write what `read_protobuf` reads."""
    writer.i32(_FRAMING)
    writer.i32(_NORMALIZATION)
    writer.utf(node.message_class)
    writer.utf(node.message_name)
    writer.bool(node.deterministic)
    writer.i32(node.max_message_size)
    writer.i32(node.recursion_limit)
    writer.bytes32(node.descriptors)
    writer.take(hashlib.sha256(node.descriptors).digest())


@register(SNAPSHOT_CLASS, write=write_protobuf)
def read_protobuf(reader: Reader, head: Head) -> Protobuf:
    """Read names, settings and descriptors; the digest must be that of the descriptors."""
    head.expect(_VERSION)
    for what, known in (("framing", _FRAMING), ("normalization", _NORMALIZATION)):
        start, version = reader.position, reader.i32()
        if version != known:
            raise reader.error(f"version {version} of the {what} of messages is not known (known: {known})", start)
    node = Protobuf(
        **head.marks,
        message_class=reader.utf(),
        message_name=reader.utf(),
        deterministic=reader.bool(),
        max_message_size=reader.i32(),
        recursion_limit=reader.i32(),
        descriptors=reader.bytes32(),
    )
    start = reader.position
    if reader.take(_DIGEST_SIZE) != hashlib.sha256(node.descriptors).digest():
        raise reader.error("the digest after the descriptors is not theirs", start)
    return node
