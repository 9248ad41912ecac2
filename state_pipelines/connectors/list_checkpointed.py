"""Sources of `ListCheckpointed`: offsets that a function keeps as serialized Java objects.

Facts from `org.apache.flink.streaming.api.checkpoint.ListCheckpointed` and `StreamingFunctionUtils`: list state
`_default_` of Flink's `JavaSerializer`. Supported are whole numbers, and tuples of two whose second field is one, such
as the `Tuple2<InputSplit, Long>` of partitioned sources (RocketMQ, DataHub, SLS). Other objects stay plain values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.json import Json, dumps, to_json
from state_pipelines.codecs.scalar.codec import read_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.connectors.connector_state import ConnectorStateKind
from state_pipelines.connectors.registry import connector_state, write_plain_element
from state_pipelines.errors import FormatError
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.connectors.connector_state import Row

COLUMNS = pa.schema([pa.field("element", pa.string()), pa.field("offset", pa.int64(), False)])
"""`element`: the owner of the offset, as JSON of `codecs.json`; null for plain numbers."""


@dataclass(frozen=True)
class CheckpointedOffset:
    """An element of the list.

    Attributes:
        content: the object, as the scalar codec gives it.
        offset: the number.
        element: JSON of the other fields; None for a plain number.
    """

    content: object
    offset: int
    element: str | None = None


def rows(offset: CheckpointedOffset) -> Iterator[Row]:
    """Yield one row of `COLUMNS`."""
    yield {"element": offset.element, "offset": offset.offset}


def is_java_object(serializer: tree.Serializer) -> bool:
    """Return whether a state holds serialized Java objects."""
    return isinstance(serializer, tree.Basic) and serializer.kind == BasicKind.JAVA_OBJECT


def write_checkpointed_offset(offset: CheckpointedOffset, serializer: tree.Serializer, context: LayoutContext) -> bytes:
    """Write what `read_checkpointed_offset` reads."""
    return write_plain_element(offset.content, serializer, context)


@connector_state(
    "list-checkpointed",
    kind=ConnectorStateKind.SPLIT,
    operator_state_names=["_default_"],
    accepts=is_java_object,
    write=write_checkpointed_offset,
    rows=rows,
    columns=COLUMNS,
)
def read_checkpointed_offset(element: bytes, serializer: tree.Serializer, context: LayoutContext) -> CheckpointedOffset:
    """Read a number, or a tuple of something and a number.

    Raises:
        FormatError: the object is something else.
    """
    content = read_value(derive_layout(serializer, context), Reader(element), tail=False)
    match to_json(serializer, content):
        case bool():
            pass
        case int() as number:
            return CheckpointedOffset(content, number)
        case {"@tuple": [first, int() as number]} if not isinstance(number, bool):
            return CheckpointedOffset(content, number, _text(first))
    raise FormatError("neither a whole number nor a tuple of something and a whole number")


def _text(value: Json) -> str:
    return dumps({"": value})[4:-1]
