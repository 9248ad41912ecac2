"""Kryo snapshots: the type class and the registrations that fix Kryo's class ids.

The bytes do not identify the release of Kryo (2.24 in Flink 1.x, 5 in Flink 2.x) that wrote the data.
Source: `KryoSerializerSnapshot`, `KryoSerializerSnapshotData`, `KryoRegistrationUtil`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.binary.writer import Writer
from state_pipelines.serializers.registry import register
from state_pipelines.serializers.snapshot_frames import Head, read_optional_map, write_optional_map
from state_pipelines.serializers.tree import Kryo, KryoRegistration

if TYPE_CHECKING:
    from state_pipelines.binary.reader import Reader

VERSION = 2


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
    key = None
    if registration.resolved:
        writer = Writer()
        writer.utf(registration.class_name)
        key = writer.getvalue()
    return registration.class_name, key, registration.value
