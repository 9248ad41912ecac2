"""Avro records in the encoding of Flink, which is not Avro's binary encoding: values, layouts, schema resolution.

Numbers have their fixed Java width, big-endian; strings and bytes an i32 length; enum constants and branches of unions
an i32 index; arrays and maps a varint count, the items, and a zero that ends them. Source:
`org.apache.flink.formats.avro.utils.DataInputDecoder` and `DataOutputEncoder`.

* `parse_avro_schema`, `read_avro`, `write_avro`: values, read with the schema that the snapshot holds. Logical types
  keep their base value: a `date` is its days, a `decimal` its bytes.
* `avro_layout`: schemas as layouts for the kernels. Records are structs, enums their constants, arrays and maps lists
  and maps. A union of null and one other type is that type, nullable; any other union is a struct of `case`, the name
  of the branch, and one field per branch; where null is among the branches of such a union, a null struct. Values have
  the type that Avro stores, whatever its logical type.
* `AvroResolution`, `make_resolution`: values of an old schema as those of a new one. Whether two schemas are compatible
  was decided before (`serializers.compatibility.objects`). Source: the Avro specification, "Schema Resolution", by
  which `AvroSerializer.deserialize` reads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.java import ExpansionBudget
from state_pipelines.errors import FormatError, UnsupportedError, ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.binary.data_views import Reader, Writer

MAX_DEPTH = 100
"""Maximum nesting depth of records, arrays and maps."""

Node: TypeAlias = "str | dict[str, object] | list[object]"


@dataclass(frozen=True)
class AvroSchema:
    """A parsed Avro schema.

    Attributes:
        root: the schema with full names, as fastavro's `parse_schema` gives it.
        named: records, enums and fixed types by full name.
    """

    root: Node
    named: Mapping[str, dict[str, object]] = field(default_factory=dict)

    def resolve(self, node: object) -> Node:
        """Return a node with a reference to a named type replaced by that type."""
        if isinstance(node, str) and node in self.named:
            return self.named[node]
        return node  # type: ignore[return-value]


@dataclass(frozen=True)
class AvroRecord:
    """A record; `name` is the full name of its schema, `fields` have the order of the schema."""

    name: str
    fields: tuple[tuple[str, object], ...]


@dataclass(frozen=True)
class AvroEnum:
    """A constant of an Avro enum."""

    name: str
    symbol: str


@dataclass(frozen=True)
class AvroMap:
    """A map; its entries keep the order in which they are stored."""

    entries: tuple[tuple[str, object], ...]


@dataclass(frozen=True)
class AvroBranch:
    """A value of a union with the index of its branch.

    Used only where `find_branch` would choose another branch (an int that was written in the branch for long).
    """

    index: int
    value: object


@lru_cache(maxsize=256)
def parse_avro_schema(schema_json: str) -> AvroSchema:
    """Parse the Avro schema of a serializer snapshot.

    Raises:
        FormatError: not an Avro schema.
    """
    named: dict[str, dict[str, object]] = {}
    try:
        root = fastavro.parse_schema(json.loads(schema_json), named_schemas=named, _write_hint=False)
    except (ValueError, KeyError, TypeError, RecursionError, SchemaParseException, UnknownType) as error:
        raise FormatError(f"the Avro schema of the snapshot cannot be parsed: {error!r}") from None
    return AvroSchema(root, named)


def read_avro(reader: Reader, schema: AvroSchema) -> object:
    """Read one value of an Avro schema, in the encoding of Flink's `AvroSerializer` unless `reader` has another one.

    Returns:
        `AvroRecord`, `AvroEnum`, `AvroMap`, a list for an array, bytes for bytes and fixed, else a plain value.

    Raises:
        FormatError: the bytes do not follow the schema, or end early.
        UnsupportedError: arrays have so many items without bytes (null, empty records) that the values are more than
            `ExpansionBudget` allows.
    """
    return _ValueReader(reader, schema).read(schema.root, 0)


def write_avro(writer: Writer, schema: AvroSchema, value: object) -> None:
    """Write a value as `read_avro` reads it.

    Raises:
        ValueRangeError: the value does not fit the schema.
    """
    _write(writer, schema, schema.root, value)


class _ValueReader:
    """Reads one value; limits the number of nested values: an array of millions of empty items takes few bytes."""

    def __init__(self, reader: Reader, schema: AvroSchema) -> None:
        self.reader = reader
        self.schema = schema
        self.budget = ExpansionBudget(reader.remaining, reader.name, reader.position)
        self.spend = self.budget.spend

    def read(self, reference: object, depth: int) -> object:
        reader, schema = self.reader, self.schema
        if depth > MAX_DEPTH:
            raise reader.error(f"Avro values are nested more than {MAX_DEPTH} levels deep")
        self.spend(1)
        node = schema.resolve(reference)
        if isinstance(node, list):
            return self._union(node, depth)
        kind = node if isinstance(node, str) else node["type"]
        if isinstance(node, dict):
            match kind:
                case "record" | "error":
                    fields = [(str(each["name"]), self.read(each["type"], depth + 1)) for each in _fields(node)]
                    return AvroRecord(str(node["name"]), tuple(fields))
                case "enum":
                    return AvroEnum(str(node["name"]), _symbols(node)[_index(reader, len(_symbols(node)))])
                case "fixed":
                    return reader.take(_size(node))
                case "array":
                    return self._items(node["items"], depth)
                case "map":
                    return AvroMap(tuple(self._entries(node["values"], depth)))
                case dict() | list():
                    return self.read(kind, depth + 1)
        return _read_primitive(reader, str(kind))

    def _union(self, node: list[object], depth: int) -> object:
        index = _index(self.reader, len(node))
        value = self.read(node[index], depth + 1)
        return value if find_branch(self.schema, node, value) == index else AvroBranch(index, value)

    def _block(self) -> int:
        """Read the count of the next block; 0 ends the items."""
        start, size = self.reader.position, self.reader.varint()
        if size > max(self.reader.remaining, self.budget.left):
            raise self.reader.error(f"a block of {size} items does not fit in {self.reader.remaining} bytes", start)
        return size

    def _items(self, node: object, depth: int) -> list[object]:
        items: list[object] = []
        while size := self._block():
            items += [self.read(node, depth + 1) for _ in range(size)]
        return items

    def _entries(self, node: object, depth: int) -> list[tuple[str, object]]:
        entries: list[tuple[str, object]] = []
        while size := self._block():
            entries += [(_read_text(self.reader), self.read(node, depth + 1)) for _ in range(size)]
        return entries


def _read_primitive(reader: Reader, kind: str) -> object:
    match kind:
        case "null":
            return None
        case "boolean":
            return reader.bool()
        case "int":
            return reader.i32()
        case "long":
            return reader.i64()
        case "float":
            return reader.f32()
        case "double":
            return reader.f64()
        case "bytes":
            return reader.bytes32()
        case "string":
            return _read_text(reader)
    raise reader.error(f"the schema names the type {kind!r}, which is not defined")


def _read_text(reader: Reader) -> str:
    raw, start = reader.bytes32(), reader.position
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise reader.error(f"an Avro string is not UTF-8: {error.reason}", start - len(raw) + error.start) from None


def _index(reader: Reader, size: int) -> int:
    start, index = reader.position, reader.i32()
    if not 0 <= index < size:
        raise reader.error(f"index {index} is outside a schema with {size} choices", start)
    return index


def _write(writer: Writer, schema: AvroSchema, reference: object, value: object) -> None:
    node = schema.resolve(reference)
    if isinstance(node, list):
        index, content = (value.index, value.value) if isinstance(value, AvroBranch) else (None, value)
        index = find_branch(schema, node, content) if index is None else index
        if index is None or not 0 <= index < len(node):
            raise ValueRangeError(f"{value!r} fits no branch of the union {[_name(schema, each) for each in node]}")
        writer.i32(index)
        _write(writer, schema, node[index], content)
        return
    kind = node if isinstance(node, str) else node["type"]
    if isinstance(kind, dict | list):
        _write(writer, schema, kind, value)
        return
    if not _fits(schema, node, value):
        raise ValueRangeError(f"{value!r} does not fit the Avro type {_name(schema, node)}")
    if isinstance(node, dict) and _write_complex(writer, schema, node, value):
        return
    _write_primitive(writer, str(kind), value)


def _write_complex(writer: Writer, schema: AvroSchema, node: dict[str, object], value: object) -> bool:
    match value:
        case AvroRecord():
            fields = dict(value.fields)
            for each in _fields(node):
                if each["name"] not in fields:
                    raise ValueRangeError(f"the Avro record {value.name} has no field {each['name']}")
                _write(writer, schema, each["type"], fields[str(each["name"])])
        case AvroEnum():
            if value.symbol not in _symbols(node):
                raise ValueRangeError(f"{value.symbol!r} is no constant of the Avro enum {value.name}")
            writer.i32(_symbols(node).index(value.symbol))
        case AvroMap():
            _write_block(writer, len(value.entries))
            for key, item in value.entries:
                writer.bytes32(key.encode("utf-8"))
                _write(writer, schema, node["values"], item)
            writer.varint(0)
        case list() | tuple():
            _write_block(writer, len(value))
            for item in value:
                _write(writer, schema, node["items"], item)
            writer.varint(0)
        case bytes() if node["type"] == "fixed":
            writer.take(value)
        case _:
            return False
    return True


def _write_block(writer: Writer, size: int) -> None:
    if size:
        writer.varint(size)


def _write_primitive(writer: Writer, kind: str, value: object) -> None:
    match value:
        case None:
            pass
        case bool():
            writer.bool(value)
        case int():
            (writer.i32 if kind == "int" else writer.i64)(value)
        case float():
            (writer.f32 if kind == "float" else writer.f64)(value)
        case bytes():
            writer.bytes32(value)
        case str():
            writer.bytes32(value.encode("utf-8"))


def find_branch(schema: AvroSchema, node: list[object], value: object) -> int | None:
    """Return the first branch of a union that a value fits."""
    return next((index for index, each in enumerate(node) if _fits(schema, each, value)), None)


def _fits(schema: AvroSchema, reference: object, value: object) -> bool:
    node = schema.resolve(reference)
    kind = node["type"] if isinstance(node, dict) else node
    if isinstance(kind, dict | list):
        return _fits(schema, kind, value)
    match value:
        case AvroRecord() | AvroEnum():
            return isinstance(node, dict) and node.get("name") == value.name
        case AvroMap():
            return kind == "map"
        case list() | tuple():
            return kind == "array"
        case None:
            return kind == "null"
        case bool():
            return kind == "boolean"
        case int():
            return kind == "long" or (kind == "int" and -(1 << 31) <= value < 1 << 31)
        case float():
            return kind in ("float", "double")
        case bytes():
            return kind == "bytes" or (isinstance(node, dict) and kind == "fixed" and _size(node) == len(value))
        case str():
            return kind == "string"
    return False


def _name(schema: AvroSchema, reference: object) -> str:
    node = schema.resolve(reference)
    return str(node.get("name", node["type"])) if isinstance(node, dict) else str(node)


def _fields(node: dict[str, object]) -> list[dict[str, object]]:
    return node["fields"]  # type: ignore[return-value]


def _symbols(node: dict[str, object]) -> list[str]:
    return node["symbols"]  # type: ignore[return-value]


def _size(node: dict[str, object]) -> int:
    return node["size"]  # type: ignore[return-value]


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
    """Avro's `fixed`: bytes of a constant size, without a length."""

    size: int


@dataclass(frozen=True)
class BlockArray(lay.Layout):
    """Avro's array: blocks of a varint count and that many elements; a count of 0 ends the array."""

    element: lay.Layout


@dataclass(frozen=True)
class BlockMapping(lay.Layout):
    """Avro's map: blocks of a varint count and that many entries (key, then value); a count of 0 ends the map."""

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
                return BlockArray(_derive(schema, node["items"], above))
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
    """Return the name of a union branch: the last component of the full name of a named type, else the type."""
    node = schema.resolve(reference)
    if isinstance(node, dict):
        return str(node["name"]).rpartition(".")[2] if "name" in node else str(node["type"])
    return str(node)


_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


@dataclass(frozen=True)
class AvroResolution:
    """Converts values from one schema to another (Avro's schema resolution).

    Attributes:
        writer: schema of the values to convert.
        reader: schema of the converted values.
    """

    writer: AvroSchema
    reader: AvroSchema

    def convert(self, value: Any) -> Any:
        """Convert a value of the old schema to the new schema.

        Raises:
            ValueRangeError: the new schema cannot store the value, such as an enum constant that was removed.
        """
        return self._convert(self.writer.root, self.reader.root, value)

    def _convert(self, old: object, new: object, value: Any) -> Any:
        before, after = _look_up(self.writer, old), _look_up(self.reader, new)
        if isinstance(before, list):
            index, content = _choose(self.writer, before, value)
            return self._convert(before[index], new, content)
        if isinstance(after, list):
            index = self._find_branch(before, after)
            converted = self._convert(before, after[index], value)
            is_first = find_branch(self.reader, after, converted) == index
            return converted if is_first else AvroBranch(index, converted)
        kind = _kind(after)
        match value:
            case AvroRecord():
                return self._convert_record(before, after, value)
            case AvroEnum():
                return _convert_enum(after, value)
            case AvroMap():
                values = before["values"], after["values"]
                return AvroMap(tuple((key, self._convert(*values, each)) for key, each in value.entries))
            case list() | tuple():
                return [self._convert(before["items"], after["items"], each) for each in value]
            case int() if kind in ("float", "double"):
                return float(value)
            case str() if kind == "bytes":
                return value.encode()
            case bytes() if kind == "string":
                return value.decode()
            case _:
                return value

    def _convert_record(self, before: Any, after: Any, value: AvroRecord) -> AvroRecord:
        stored = dict(value.fields)
        types = {field["name"]: field["type"] for field in before["fields"]}
        fields = []
        for wanted in after["fields"]:
            name = next((each for each in (wanted["name"], *wanted.get("aliases", ())) if each in types), None)
            if name is not None:
                fields.append((wanted["name"], self._convert(types[name], wanted["type"], stored[name])))
            elif "default" in wanted:
                fields.append((wanted["name"], _make_default(self.reader, wanted["type"], wanted["default"])))
            else:
                raise ValueRangeError(f"the field {wanted['name']} of {after['name']} is new and has no default")
        return AvroRecord(str(after["name"]), tuple(fields))

    def _find_branch(self, before: Any, branches: list[object]) -> int:
        """Return the index of the first branch of the new union that has the type of a value of the old schema.

        If there is none, it is the first branch to which Avro promotes that type.
        """
        kind = _kind(before)
        found = [_look_up(self.reader, branch) for branch in branches]
        for index, branch in enumerate(found):
            if _kind(branch) == kind and (not _is_named(branch) or _same_name(before, branch)):
                return index
        for index, branch in enumerate(found):
            if _kind(branch) in _PROMOTIONS.get(kind, ()):
                return index
        raise ValueRangeError(f"no branch of the new Avro union takes a value of {kind}")


def make_resolution(old_schema: str, new_schema: str) -> AvroResolution:
    """Make the resolution between two schemas, both given as JSON.

    Raises:
        FormatError: one is not an Avro schema.
    """
    return AvroResolution(parse_avro_schema(old_schema), parse_avro_schema(new_schema))


def _choose(schema: AvroSchema, branches: list[object], value: Any) -> tuple[int, Any]:
    if isinstance(value, AvroBranch):
        return value.index, value.value
    index = find_branch(schema, branches, value)
    if index is None:
        raise ValueRangeError(f"{value!r:.80} fits no branch of the old Avro union")
    return index, value


def _convert_enum(after: Any, value: AvroEnum) -> AvroEnum:
    symbol = value.symbol if value.symbol in after["symbols"] else after.get("default")
    if symbol is None:
        raise ValueRangeError(f"{value.symbol!r} is no constant of the new Avro enum {after['name']}")
    return AvroEnum(str(after["name"]), symbol)


def _make_default(schema: AvroSchema, reference: object, default: Any) -> Any:
    """Convert the default of a field from JSON to a value; the default of a union is a value of its first branch."""
    node: Any = _look_up(schema, reference)
    if isinstance(node, list):
        value = _make_default(schema, node[0], default)
        return value if find_branch(schema, node, value) == 0 else AvroBranch(0, value)
    match _kind(node):
        case "record":
            known = {**{each["name"]: each["default"] for each in node["fields"] if "default" in each}, **default}
            fields = (
                (each["name"], _make_default(schema, each["type"], known[each["name"]])) for each in node["fields"]
            )
            return AvroRecord(str(node["name"]), tuple(fields))
        case "enum":
            return AvroEnum(str(node["name"]), default)
        case "map":
            entries = default.items()
            return AvroMap(tuple((key, _make_default(schema, node["values"], each)) for key, each in entries))
        case "array":
            return [_make_default(schema, node["items"], each) for each in default]
        case "bytes" | "fixed":
            # A schema gives a default of bytes as text, in which each code point (0 to 255) is a byte.
            return default.encode("latin-1")
        case "float" | "double":
            return float(default)
        case "null" | "boolean" | "int" | "long" | "string":
            return default
        case kind:
            raise UnsupportedError(f"a default of the Avro type {kind} is not known")


def _look_up(schema: AvroSchema, reference: object) -> Any:
    node: Any = schema.resolve(reference)
    while isinstance(node, dict) and isinstance(node["type"], dict | list):
        node = schema.resolve(node["type"])
    return node


def _kind(node: Any) -> str:
    return str(node["type"]) if isinstance(node, dict) else str(node)


def _is_named(node: Any) -> bool:
    return isinstance(node, dict) and "name" in node


def _same_name(before: Any, after: Any) -> bool:
    old = str(before["name"])
    return old.rpartition(".")[2] == str(after["name"]).rpartition(".")[2] or old in after.get("aliases", ())
