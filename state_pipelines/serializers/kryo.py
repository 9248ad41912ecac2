"""Kryo snapshots: the type class and the registrations that fix Kryo's class ids.

The bytes do not identify the release of Kryo (2.24 in Flink 1.x, 5 in Flink 2.x) that wrote the data.
Source: `KryoSerializerSnapshot`, `KryoSerializerSnapshotData`, `KryoRegistrationUtil`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Writer
from state_pipelines.serializers.registry import register
from state_pipelines.serializers.snapshot_frames import Head, read_optional_map, write_optional_map
from state_pipelines.serializers.tree import Kryo, KryoRegistration

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader

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
