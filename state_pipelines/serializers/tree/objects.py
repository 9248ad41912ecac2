"""Serializers of Java objects: POJO, Kryo and Avro."""

from __future__ import annotations

from dataclasses import dataclass

from state_pipelines.serializers.tree.base import Serializer


@dataclass(frozen=True, kw_only=True)
class PojoField:
    """One field of a POJO.

    Attributes:
        name: field name (the key of the map in the snapshot).
        declaring_class: class that declares the field; None when it could not be resolved at write time.
        serializer: None when it could not be resolved at write time.
    """

    name: str
    declaring_class: str | None
    serializer: Serializer | None


@dataclass(frozen=True, kw_only=True)
class PojoSubclass:
    """A subclass of a POJO class with its own serializer (None when unresolved at write time).

    Attributes:
        resolved: whether the class itself could be resolved when the snapshot was written (`hasKey`).
    """

    class_name: str
    serializer: Serializer | None
    resolved: bool = True


@dataclass(frozen=True, kw_only=True)
class Pojo(Serializer):
    """`PojoSerializer`; also Java records. Fields and subclasses in the order of the snapshot."""

    snapshot_class: str = "org.apache.flink.api.java.typeutils.runtime.PojoSerializerSnapshot"
    snapshot_version: int = 2
    pojo_class: str
    fields: tuple[PojoField, ...]
    registered: tuple[PojoSubclass, ...] = ()
    non_registered: tuple[PojoSubclass, ...] = ()

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """Serializers of the fields, then of the registered and the non-registered subclasses."""
        serializers = (
            *(each.serializer for each in self.fields),
            *(each.serializer for each in self.registered),
            *(each.serializer for each in self.non_registered),
        )
        return tuple(each for each in serializers if each is not None)


@dataclass(frozen=True, kw_only=True)
class KryoRegistration:
    """An entry of the Kryo registrations.

    Attributes:
        class_name: the registered class (key of the map).
        resolved: False when the class could not be resolved at write time.
        value: the encoded `KryoRegistration` (None when unresolved), kept as bytes.
    """

    class_name: str
    resolved: bool
    value: bytes | None


@dataclass(frozen=True, kw_only=True)
class Kryo(Serializer):
    """`KryoSerializer`: any class that Flink knows no better serializer for."""

    snapshot_class: str = "org.apache.flink.api.java.typeutils.runtime.kryo.KryoSerializerSnapshot"
    snapshot_version: int = 2
    type_class: str
    registrations: tuple[KryoRegistration, ...] = ()
    default_serializers: tuple[KryoRegistration, ...] = ()
    default_serializer_classes: tuple[KryoRegistration, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Protobuf(Serializer):
    """`ProtobufTypeSerializer` of flink-datastream-protobuf: a length, then a message of Protobuf.

    Attributes:
        message_class: the generated Java class.
        message_name: full name of the message.
        deterministic: whether maps are written in the order of their keys.
        max_message_size: bytes of a message that are read at most.
        recursion_limit: depth of messages that is read at most.
        descriptors: the `FileDescriptorSet` of the message and its imports, as stored.
    """

    snapshot_class: str = "io.github.flink.gcp.protobuf.ProtobufTypeSerializerSnapshot"
    snapshot_version: int = 1
    message_class: str
    message_name: str
    deterministic: bool = False
    max_message_size: int = 64 << 20
    recursion_limit: int = 100
    descriptors: bytes


@dataclass(frozen=True, kw_only=True)
class Avro(Serializer):
    """`AvroSerializer`: generic, specific or reflect records.

    Attributes:
        schema_json: the writer schema, as stored.
    """

    snapshot_class: str = "org.apache.flink.formats.avro.typeutils.AvroSerializerSnapshot"
    runtime_class: str
    schema_json: str
