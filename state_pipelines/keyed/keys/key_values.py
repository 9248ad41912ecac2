"""Keys as users write them: JSON in the form of `read` or `dump`, or plain text where the key is text."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.codecs.columns import plan_columns
from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.codecs.layout import Layout

_EPOCH = datetime.date(1970, 1, 1)
_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


@dataclass(frozen=True)
class KeyText:
    """A key as text of a command line or of a Spark option.

    A JSON string is the key between its quotes. Where keys are text, anything else is the key itself (`order-1`, `42`,
    `null`); where they are not, it is JSON. A key of PyFlink, a Row of one field, is that field.

    Attributes:
        text: the text.
    """

    text: str

    def read(self, kind: pa.DataType) -> object:
        """The key as a value of JSON.

        Args:
            kind: Arrow type of the keys.

        Raises:
            UsageError: the keys are not text, and the text is not JSON.
        """
        if (only := _find_only_field(kind)) is not None:
            field = self.read(only)
            return field if isinstance(field, Mapping) else {"row_kind": "+I", "f0": field}
        try:
            value: object = json.loads(self.text)
        except (ValueError, RecursionError):
            if pa.types.is_string(kind):
                return self.text
            raise UsageError(
                f"the key is not JSON: {self.text:.80}",
                hint=f"The keys have the type {kind}; write one as `read --json` or `dump` shows it",
            ) from None
        if pa.types.is_string(kind) and not isinstance(value, str | Mapping):
            return self.text
        return value


def _find_only_field(kind: pa.DataType) -> pa.DataType | None:
    """Type of the only field of a Row, as the keys of PyFlink are (`KeyByKeySelector`); None of other types."""
    if pa.types.is_struct(kind) and [each.name for each in kind] == ["row_kind", "f0"]:
        return kind.field("f0").type
    return None


def encode_keys(layout: Layout, keys: Sequence[object]) -> list[bytes]:
    """The bytes of keys, as their serializer writes them.

    Args:
        layout: of the keys.
        keys: values of JSON in the form of `read` or `dump`, Arrow's Python values, or `KeyText`.

    Raises:
        UsageError: a value is not a key of this type.
        ValueRangeError: a value does not fit the serializer.
    """
    columns = plan_columns(layout)
    read = [key.read(columns.type) if isinstance(key, KeyText) else key for key in keys]
    try:
        encoded = columns.encode(pa.array([_to_arrow(key, columns.type) for key in read], columns.type))
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError) as error:
        shown = ", ".join(f"{key.text if isinstance(key, KeyText) else key!r:.80}" for key in keys)
        raise UsageError(f"{shown}: not of the type of the keys, {columns.type}: {error}") from None
    data = encoded.data.tobytes()
    return [data[start:end] for start, end in zip(encoded.starts.tolist(), encoded.stops.tolist(), strict=True)]


def _to_arrow(value: object, kind: pa.DataType) -> object:
    """A value of JSON as Arrow takes it for a type.

    Raises:
        UsageError: it has not the fields of the type.
        ValueError: it is not text of such a value.
    """
    if isinstance(value, Mapping):
        return _open_mapping(value, kind)
    if pa.types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        if isinstance(value, list) and len(value) == len(names):
            return _to_arrow(dict(zip(names, value, strict=True)), kind)
        if value is not None:
            raise UsageError(f"{value!r:.80} is not a key with the fields {', '.join(names)}")
    if isinstance(value, list) and pa.types.is_list(kind):
        return [_to_arrow(each, kind.value_type) for each in value]
    if isinstance(value, str):
        return _read_text(value, kind)
    if isinstance(value, float | bool) and pa.types.is_integer(kind):
        # Arrow would cut the fraction off.
        raise ValueError(f"{value} is not a whole number")
    if pa.types.is_timestamp(kind) and value is not None:
        # `@ts` holds milliseconds and the nanoseconds of one, other tags milliseconds.
        match value:
            case int() as millis:
                return _scale(millis * 1_000_000, kind)
            case [int() as millis, int() as nanos]:
                return _scale(millis * 1_000_000 + nanos, kind)
        raise ValueError(f"{value} is not a point in time")
    return value


def _open_mapping(value: Mapping[str, object], kind: pa.DataType) -> object:
    """A struct by field names, or a value with a tag of `dump` (see `codecs.json.json_lines`)."""
    fields = {name: item for name, item in value.items() if not name.startswith("@")}
    tags = {name: item for name, item in value.items() if name.startswith("@")}
    names = [kind.field(index).name for index in range(kind.num_fields)] if pa.types.is_struct(kind) else []
    content = next((item for tag, item in tags.items() if tag not in ("@class", "@kind")), None)
    if content is not None and not fields:
        if isinstance(content, list) and names and len(content) == len(names) - 1 and names[0] == "row_kind":
            content = [tags.get("@kind", "+I"), *content]
        return _to_arrow(content, kind)
    if not names or set(fields) - set(names):
        raise UsageError(f"{value!r:.80} is not a key of type {kind}", hint="Write keys as `read` or `dump` shows them")
    if "class" in names and "@class" in tags:
        fields["class"] = tags["@class"]
    return {name: _to_arrow(item, kind.field(name).type) for name, item in fields.items()}


def _read_text(text: str, kind: pa.DataType) -> object:
    if pa.types.is_binary(kind):
        return bytes.fromhex(text)
    if pa.types.is_date32(kind):
        return datetime.date.fromisoformat(text)
    if pa.types.is_timestamp(kind):
        day, _, time = text.removesuffix("Z").partition("T")
        days = datetime.date.fromisoformat(day) - _EPOCH
        return _scale(days.days * 86_400_000_000_000 + _read_time(time), kind)
    if pa.types.is_time64(kind):
        return _scale(_read_time(text), kind)
    return text


def _read_time(text: str) -> int:
    """Nanoseconds of the day; Python's own times have microseconds."""
    whole, _, fraction = text.partition(".")
    time = datetime.time.fromisoformat(whole)
    if len(fraction) > 9:
        raise ValueError(f"{text} has more than nine decimals")
    return ((time.hour * 60 + time.minute) * 60 + time.second) * 1_000_000_000 + int(fraction.ljust(9, "0"))


def _scale(nanos: int, kind: pa.DataType) -> int:
    """Nanoseconds in the unit of a type."""
    value, rest = divmod(nanos, _NANOS[kind.unit])
    if rest:
        raise ValueError(f"{nanos} nanoseconds are not a whole number of {kind.unit}")
    return value
