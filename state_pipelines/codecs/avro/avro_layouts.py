"""Avro schemas as layouts for the kernels.

Records are structs, enums their constants, arrays and maps lists and maps. A union of null and one other type is that
type, nullable; any other union is a struct of `case`, the name of the branch, and one field per branch; where null is
among the branches of such a union, a null struct. Values have the type that Avro stores, whatever its logical type.
Source: `org.apache.flink.formats.avro.utils.DataInputDecoder` and `DataOutputEncoder`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.avro.avro_records import MAX_DEPTH, parse_avro_schema
from state_pipelines.errors import UnsupportedError

if TYPE_CHECKING:
    from state_pipelines.codecs.avro.avro_records import AvroSchema

_PRIMITIVES: dict[str, lay.Layout] = {
    "null": lay.Constant(b""),
    "boolean": lay.Primitive(lay.PrimitiveKind.BOOL),
    "int": lay.Primitive(lay.PrimitiveKind.I32),
    "long": lay.Primitive(lay.PrimitiveKind.I64),
    "float": lay.Primitive(lay.PrimitiveKind.F32),
    "double": lay.Primitive(lay.PrimitiveKind.F64),
    "bytes": lay.Sized(),
    "string": lay.Sized(text=True),
}


@dataclass(frozen=True)
class FixedBytes(lay.Layout):
    """Always the same number of bytes."""

    size: int


@dataclass(frozen=True)
class Blocks(lay.Layout):
    """Blocks of a varint count and elements, up to an empty one."""

    element: lay.Layout


@dataclass(frozen=True)
class BlockMapping(lay.Layout):
    """Blocks of entries: a key and a value each."""

    key: lay.Layout
    value: lay.Layout


@lru_cache(maxsize=256)
def avro_layout(schema_json: str) -> lay.Layout:
    """Return the layout of the values of a schema.

    Raises:
        FormatError: not an Avro schema.
        UnsupportedError: a record contains itself, for which Arrow has no type.
    """
    schema = parse_avro_schema(schema_json)
    return _derive(schema, schema.root, ())


def _derive(schema: AvroSchema, reference: object, above: tuple[str, ...]) -> lay.Layout:
    node = schema.resolve(reference)
    if isinstance(node, list):
        return _derive_union(schema, node, above)
    kind = node if isinstance(node, str) else node["type"]
    if isinstance(node, dict):
        match kind:
            case "record" | "error":
                return _derive_record(schema, node, above)
            case "enum":
                return lay.Constants(tuple(node["symbols"]))  # type: ignore[arg-type]
            case "fixed":
                return FixedBytes(node["size"])  # type: ignore[arg-type]
            case "array":
                return Blocks(_derive(schema, node["items"], above))
            case "map":
                return BlockMapping(lay.Sized(text=True), _derive(schema, node["values"], above))
            case dict() | list():
                return _derive(schema, kind, above)
    found = _PRIMITIVES.get(str(kind))
    if found is None:
        raise UnsupportedError(f"the Avro schema names the type {kind!r}, which is not defined")
    return found


def _derive_record(schema: AvroSchema, node: dict[str, object], above: tuple[str, ...]) -> lay.Layout:
    name = str(node["name"])
    if name in above or len(above) > MAX_DEPTH:
        raise UnsupportedError(f"the Avro record {name} contains itself, for which Arrow has no type")
    fields: list[dict[str, object]] = node["fields"]  # type: ignore[assignment]
    return lay.Struct(tuple((str(each["name"]), _derive(schema, each["type"], (*above, name))) for each in fields))


def _derive_union(schema: AvroSchema, node: list[object], above: tuple[str, ...]) -> lay.Layout:
    branches = [_derive(schema, each, above) for each in node]
    nulls = [index for index, each in enumerate(branches) if each == lay.Constant(b"")]
    if len(branches) == 2 and len(nulls) == 1:
        return lay.Marked(branches[1 - nulls[0]], null=nulls[0], present=1 - nulls[0])
    names = [branch_name(schema, each) for each in node]
    if len(set(names)) < len(names):
        names = [f"{name}_{index}" for index, name in enumerate(names)]
    cases = tuple((index, name, each) for index, (name, each) in enumerate(zip(names, branches, strict=True)))
    return lay.Tagged(cases, width=4)


def branch_name(schema: AvroSchema, reference: object) -> str:
    """Return the name of a union branch: its type, or the last component of its full name."""
    node = schema.resolve(reference)
    if isinstance(node, dict):
        return str(node["name"]).rpartition(".")[2] if "name" in node else str(node["type"])
    return str(node)
