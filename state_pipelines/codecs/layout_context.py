"""Context of data layouts: Kryo version, declared classes and messages, and the values that are kept as bytes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from state_pipelines.codecs.kryo.field_lists import FieldLists
    from state_pipelines.codecs.messages.chill_messages import MessageTypes
    from state_pipelines.serializers import tree


class OpaqueValues(Enum):
    """Values that are kept as bytes (`layout.Opaque`) instead of being decoded."""

    NONE = 0
    UNDECODABLE = 1
    """Values that no codec decodes."""
    ALL = 2
    """Values whose shape does not follow from their serializer: Kryo, Java objects, custom serializers."""


@dataclass(frozen=True)
class LayoutContext:
    """The context that data layouts depend on beside the serializer snapshot.

    Attributes:
        kryo_version: 2 for snapshots of Flink 1.x, 5 from 2.0 (the serializer snapshot does not store it).
        opaque_values: the values that are kept as bytes.
        subclasses: non-registered POJO subclasses by POJO class, as far as any serializer of the snapshot lists them.
            The heap backend writes objects of such classes without listing the class in the state's own serializer.
        classes: declarations of classes that the snapshot does not describe: fields of classes that Kryo writes, and
            subclasses of POJOs.
        messages: declared messages of Protobuf and Thrift inside Kryo.
    """

    kryo_version: int = 5
    subclasses: tuple[tuple[str, tuple[tree.PojoSubclass, ...]], ...] = field(default=())
    classes: FieldLists | None = None
    messages: MessageTypes | None = None
    opaque_values: OpaqueValues = OpaqueValues.NONE


def keep_all_opaque(context: LayoutContext) -> LayoutContext:
    """Return `context` with all opaque values kept as bytes, for values that are only passed on."""
    return replace(context, opaque_values=OpaqueValues.ALL)


def keep_undecodable(context: LayoutContext) -> LayoutContext:
    """Return `context` with only undecodable values kept as bytes, for values that are read."""
    return replace(context, opaque_values=OpaqueValues.UNDECODABLE)
