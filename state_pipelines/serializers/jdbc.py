"""State of the exactly-once sink of JDBC: simple serializers whose snapshot holds one more version.

Source: repository apache/flink-connector-jdbc, package `org.apache.flink.connector.jdbc.xa`: `XaSinkStateSerializer`,
`CheckpointAndXidSerializer`, `XidSerializer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import UnsupportedVersionError
from state_pipelines.serializers.basic import CURRENT_VERSION
from state_pipelines.serializers.registry import register
from state_pipelines.serializers.tree import Basic, BasicKind

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer
    from state_pipelines.serializers.snapshot_frames import Head

_XA = "org.apache.flink.connector.jdbc.xa."
_KINDS = {
    f"{_XA}XaSinkStateSerializer$XaSinkStateSimpleXaTypeSerializerSnapshot": BasicKind.JDBC_XA_SINK_STATE,
    f"{_XA}CheckpointAndXidSerializer$CheckpointAndXidSimpleTypeSerializerSnapshot": BasicKind.JDBC_CHECKPOINT_AND_XID,
    f"{_XA}XidSerializer$XidSimpleTypeSerializerSnapshot": BasicKind.JDBC_XID,
}
OWN_VERSION = 1


def write_xa(writer: Writer, node: Basic) -> None:
    """Write what `read_xa` reads."""
    writer.i32(OWN_VERSION)


@register(*_KINDS, write=write_xa)
def read_xa(reader: Reader, head: Head) -> Basic:
    """Read the version that these snapshots write after the empty body of a simple one."""
    head.expect(CURRENT_VERSION)
    version = reader.i32()
    if version != OWN_VERSION:
        raise UnsupportedVersionError(
            f"version {version} of {head.snapshot_class} is not supported (known: {OWN_VERSION})"
        )
    return Basic(**head.marks, kind=_KINDS[head.snapshot_class])
