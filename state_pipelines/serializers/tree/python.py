"""Serializers of PyFlink's table runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_pipelines.serializers.tree.base import Serializer

if TYPE_CHECKING:
    from state_pipelines.serializers.tree.table_runtime import LogicalType


@dataclass(frozen=True, kw_only=True)
class PythonRow(Serializer):
    """`RowDataSerializer` of PyFlink: row kind and null bits in a mask, then the fields.

    Attributes:
        types: one logical type per field.
        fields: one serializer per field (nested snapshots).
        java_types: the Java streams of the types as written.
    """

    types: tuple[LogicalType, ...]
    fields: tuple[Serializer, ...]
    java_types: tuple[bytes, ...] = field(repr=False, default=())

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The field serializers."""
        return self.fields


@dataclass(frozen=True, kw_only=True)
class PythonArray(Serializer):
    """`ArrayDataSerializer` of PyFlink; `java` holds the Java streams as written, `element` follows from the type."""

    element_type: LogicalType
    element: Serializer
    java: tuple[bytes, ...] = field(repr=False, default=())


@dataclass(frozen=True, kw_only=True)
class PythonMap(Serializer):
    """`MapDataSerializer` of PyFlink; as `PythonArray`."""

    key_type: LogicalType
    value_type: LogicalType
    key: Serializer
    value: Serializer
    java: tuple[bytes, ...] = field(repr=False, default=())


@dataclass(frozen=True, kw_only=True)
class PythonDecimal(Serializer):
    """`DecimalDataSerializer` of PyFlink: decimal numbers as text."""

    precision: int
    scale: int
