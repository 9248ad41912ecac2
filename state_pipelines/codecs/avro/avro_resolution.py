"""Avro values of an old schema as those of a new one, by Avro's schema resolution.

Source: the Avro specification, "Schema Resolution", by which `AvroSerializer.deserialize` reads. Whether two schemas go
together was decided before (`serializers.compatibility.avro`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from state_pipelines.codecs.avro.avro_records import (
    AvroBranch,
    AvroEnum,
    AvroMap,
    AvroRecord,
    AvroSchema,
    find_branch,
    parse_avro_schema,
)
from state_pipelines.errors import UnsupportedError, ValueRangeError

_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


@dataclass(frozen=True)
class AvroResolution:
    """Converts values.

    Attributes:
        writer: schema of the old values.
        reader: schema of the new ones.
    """

    writer: AvroSchema
    reader: AvroSchema

    def convert(self, value: Any) -> Any:
        """A value of the old schema as one of the new schema.

        Raises:
            ValueRangeError: the new schema cannot store it, such as a constant of an enum that is gone.
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
        for field in after["fields"]:
            name = next((each for each in (field["name"], *field.get("aliases", ())) if each in types), None)
            if name is not None:
                fields.append((field["name"], self._convert(types[name], field["type"], stored[name])))
            elif "default" in field:
                fields.append((field["name"], _make_default(self.reader, field["type"], field["default"])))
            else:
                raise ValueRangeError(f"the field {field['name']} of {after['name']} is new and has no default")
        return AvroRecord(str(after["name"]), tuple(fields))

    def _find_branch(self, before: Any, branches: list[object]) -> int:
        """The first branch of the same type, else the first one that the type is promoted to."""
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
    """The resolution between two schemas, as JSON.

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
    """The value of a default, which JSON has by the first branch of a union."""
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
            # Code points up to 255 stand for bytes.
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
