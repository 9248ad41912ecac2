"""Types of Avro: records are dicts in Python, `AvroRecord` in the scalar codec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from state_pipelines.codecs.avro import (
    AvroBranch,
    AvroEnum,
    AvroMap,
    AvroRecord,
    AvroSchema,
    parse_avro_schema,
)
from state_pipelines.datastream.type_information import GivenTypeInfo
from state_pipelines.errors import ValueRangeError

if TYPE_CHECKING:
    from state_pipelines.serializers.tree import Avro

_STORED = (AvroRecord, AvroEnum, AvroMap, AvroBranch)
_TEXTS = ("string", "enum")
_DICTS = ("record", "map", "error")


@dataclass(frozen=True)
class AvroTypeInfo(GivenTypeInfo):
    """Avro records (`AvroSerializer`): dicts of their fields, and so are maps; enums are the names of their constants.

    Values have the physical types of Avro: a `timestamp-millis` is a number. In a union in which a dict or a name could
    be of several branches, values are `AvroRecord`, `AvroMap` or `AvroEnum`, which are accepted everywhere.

    Attributes:
        stored: the serializer.
    """

    stored: Avro

    @cached_property
    def schema(self) -> AvroSchema:
        """The schema of the values."""
        return parse_avro_schema(self.stored.schema_json)

    @property
    def java_class(self) -> str:
        """The generated class, or that of generic records."""
        return self.stored.runtime_class

    def to_internal_type(self, obj: Any) -> Any:
        """Convert dicts and names of constants."""
        return self._write(self.schema.root, obj, "")

    def from_internal_type(self, obj: Any) -> Any:
        """Convert records and maps to dicts, enums to names of constants."""
        return self._read(self.schema.root, obj)

    def _resolve(self, reference: object) -> tuple[str, Any]:
        """Return the kind of a node, such as record or union, and the node."""
        node: Any = self.schema.resolve(reference)
        if isinstance(node, list):
            return "union", node
        while isinstance(node, dict) and isinstance(node["type"], dict | list):
            return self._resolve(node["type"])
        return (node["type"], node) if isinstance(node, dict) else (node, node)

    def _write(self, reference: object, value: Any, path: str) -> Any:
        kind, node = self._resolve(reference)
        if isinstance(value, AvroRecord | AvroMap | AvroEnum | AvroBranch):
            return value
        if kind == "union":
            return self._write_branch(node, value, path)
        if kind in ("record", "error"):
            return self._write_record(node, value, path)
        if kind == "map":
            if not isinstance(value, Mapping):
                raise _refuse(value, path, "a map of Avro", "Give a dict with texts as keys")
            entries = ((str(key), self._write(node["values"], item, f"{path}[{key!r}]")) for key, item in value.items())
            return AvroMap(tuple(entries))
        if kind == "array":
            if not isinstance(value, list | tuple):
                raise _refuse(value, path, "an array of Avro", "Give a list")
            return [self._write(node["items"], each, f"{path}[{index}]") for index, each in enumerate(value)]
        if kind == "enum":
            if value not in node["symbols"]:
                hint = f"Give one of {', '.join(node['symbols'])}"
                raise _refuse(value, path, f"a constant of the Avro enum {node['name']}", hint)
            return AvroEnum(node["name"], value)
        if not _is_primitive(kind, node, value):
            raise _refuse(
                value, path, f"a value of the Avro type {kind}", _HINTS.get(kind, "See the schema of the state")
            )
        return float(value) if kind in ("float", "double") else value

    def _write_record(self, node: Any, value: Any, path: str) -> AvroRecord:
        names = [each["name"] for each in node["fields"]]
        if not isinstance(value, Mapping):
            raise _refuse(value, path, f"a record of Avro {node['name']}", f"Give a dict of {', '.join(names)}")
        if set(value) != set(names):
            missing, unknown = (
                [each for each in names if each not in value],
                [each for each in value if each not in names],
            )
            what = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(map(str, unknown))}"] * bool(
                unknown
            )
            hint = f"It {' and '.join(what)}; give a dict of {', '.join(names)}"
            raise _refuse(value, path, f"a record of Avro {node['name']}", hint)
        fields = (
            (each["name"], self._write(each["type"], value[each["name"]], f"{path}.{each['name']}"))
            for each in node["fields"]
        )
        return AvroRecord(node["name"], tuple(fields))

    def _write_branch(self, union: list[object], value: Any, path: str) -> Any:
        """Convert a value to the branch that takes it, the first one of several where these are numbers or texts."""
        if value is None and "null" in (self._resolve(each)[0] for each in union):
            return None
        found = [(each, converted) for each in union if (converted := self._try(each, value, path)) is not None]
        if isinstance(value, int):
            # A number with a fraction only where there is no branch of whole ones.
            found.sort(key=lambda pair: isinstance(pair[1], float))
        if not found:
            names = ", ".join(self._name(each) for each in union)
            raise _refuse(value, path, f"of any branch of the Avro union of {names}", "Give a value of one of them")
        kinds = [self._resolve(each)[0] for each, _ in found]
        if len(found) > 1 and (isinstance(value, Mapping) or "enum" in kinds):
            names = ", ".join(self._name(each) for each, _ in found)
            raise _refuse(
                value,
                path,
                f"of one branch alone: it can be {names}",
                "Give AvroRecord(name, fields), AvroMap(entries) or AvroEnum(name, symbol) of "
                "state_pipelines.codecs.avro",
            )
        return found[0][1]

    def _try(self, reference: object, value: Any, path: str) -> Any:
        try:
            return self._write(reference, value, path)
        except ValueRangeError:
            return None

    def _name(self, reference: object) -> str:
        kind, node = self._resolve(reference)
        return str(node["name"]) if isinstance(node, dict) and "name" in node else kind

    def _read(self, reference: object, value: Any) -> Any:
        kind, node = self._resolve(reference)
        if isinstance(value, AvroBranch):
            return value
        if kind == "union":
            kinds = [self._resolve(each)[0] for each in node]
            alike = _DICTS if isinstance(value, AvroRecord | AvroMap) else _TEXTS
            if isinstance(value, _STORED) and sum(each in alike for each in kinds) > 1:
                return value
            return self._read_branch(node, value)
        match value:
            case AvroRecord(fields=fields):
                types = {each["name"]: each["type"] for each in node["fields"]}
                return {name: self._read(types[name], item) for name, item in fields}
            case AvroMap(entries=entries):
                return {name: self._read(node["values"], item) for name, item in entries}
            case AvroEnum(symbol=symbol):
                return symbol
            case list():
                return [self._read(node["items"], each) for each in value]
        return value

    def _read_branch(self, union: list[object], value: Any) -> Any:
        wanted = {AvroRecord: ("record", "error"), AvroMap: ("map",), AvroEnum: ("enum",), list: ("array",)}
        kinds = wanted.get(type(value), ())
        for each in union:
            kind, node = self._resolve(each)
            if kind in kinds and (not isinstance(value, AvroRecord | AvroEnum) or node["name"] == value.name):
                return self._read(each, value)
        return value


_HINTS = {
    "int": "Give an int of 32 bits",
    "long": "Give an int of 64 bits; a timestamp is the number that its logical type says",
    "string": "Give a str",
    "bytes": "Give bytes",
    "boolean": "Give True or False",
    "null": "Give None",
}


def _is_primitive(kind: str, node: Any, value: Any) -> bool:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int":
            return is_int and -(1 << 31) <= value < 1 << 31
        case "long":
            return is_int and -(1 << 63) <= value < 1 << 63
        case "float" | "double":
            return isinstance(value, float) or is_int
        case "fixed":
            return isinstance(value, bytes) and len(value) == node["size"]
        case "bytes":
            return isinstance(value, bytes)
    return isinstance(value, str)


def _refuse(value: Any, path: str, wanted: str, hint: str) -> ValueRangeError:
    at = f" at {path.removeprefix('.')}" if path else ""
    return ValueRangeError(f"{value!r:.80} is not {wanted}{at}", hint=hint)
