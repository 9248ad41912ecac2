"""Avro snapshots: the runtime class and the writer schema.

Source: `org.apache.flink.formats.avro.typeutils.AvroSerializerSnapshot`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.serializers.registry import register
from state_pipelines.serializers.tree import Avro

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer
    from state_pipelines.serializers.snapshot_frames import Head

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
