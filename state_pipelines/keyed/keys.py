"""Keys: as users write them, as bytes, and as filters of records."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from state_pipelines.codecs.columns import plan_columns
from state_pipelines.errors import UsageError
from state_pipelines.keyed.kernels import match_prefixes, tabulate_needles
from state_pipelines.keyed.key_groups import encode_prefix

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from state_pipelines.codecs.layout import Layout
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.metadata.handles import KeyGroupRange

TIMESTAMP = 8
"""Size in bytes of the timestamp before the key of a timer."""


@dataclass(frozen=True)
class KeyFilter:
    """Filter that keeps or drops the records of some keys; can be pickled.

    Attributes:
        keys: keys as the key serializer writes them. Serialized keys are self-delimiting: a record whose bytes begin
            with one of them has that key.
        keep: true to keep only the records of these keys, false to drop them.
    """

    keys: frozenset[bytes]
    keep: bool = True

    def select(self, records: KeyedRecords, *, timers: bool = False) -> npt.NDArray[np.bool_]:
        """Mark the kept records, bool[n]; keys of timers follow their timestamps."""
        found = np.zeros(len(records), np.bool_)
        if self.keys:
            data, needles, sizes, lengths, table = self._tables
            starts = records.key_starts + TIMESTAMP if timers else records.key_starts
            base = records.data.ctypes.data
            match_prefixes(base, starts, records.key_ends, needles + data.ctypes.data, sizes, lengths, table, found)
        return found if self.keep else ~found

    @cached_property
    def _tables(self) -> tuple[npt.NDArray[Any], ...]:
        """Bytes of all keys, start of each, sizes, distinct sizes, and the hash table of `match_prefixes`."""
        keys = sorted(self.keys)
        data = np.frombuffer(b"".join(keys) or b"\0", np.uint8)
        sizes = np.array([len(key) for key in keys], np.int64)
        starts = np.cumsum(sizes) - sizes
        table = np.full(1 << (2 * len(keys)).bit_length(), -1, np.int64)
        tabulate_needles(starts + data.ctypes.data, sizes, table)
        return data, starts, sizes, np.unique(sizes), table

    def __getstate__(self) -> dict[str, object]:
        return {"keys": self.keys, "keep": self.keep}


MOST_SEEKS = 4096
"""Maximum number of key ranges that are sought one by one; for more, all keys of the key groups are read."""


@dataclass(frozen=True)
class KeySeeks:
    """Keys to seek in a database, whose records are sorted by key; can be pickled.

    Attributes:
        keys: (key as its serializer writes it, its key group as a range); the range is None if the hash of the key is
            not known.
    """

    keys: tuple[tuple[bytes, KeyGroupRange | None], ...]

    def find_ranges(
        self, key_groups: KeyGroupRange, prefix: int, *, timers: bool = False
    ) -> list[tuple[bytes, bytes | None]]:
        """Find the ranges of prefixed keys in which the wanted keys are.

        Args:
            key_groups: key groups that are read.
            prefix: bytes of the key-group prefix.
            timers: the state has timers, whose timestamps precede their keys, so whole key groups are read.

        Returns:
            (first key, end), ascending, without overlap; the end is exclusive, None is after the last key.
        """
        wanted = [(key, key_groups if group is None else key_groups.intersect(group)) for key, group in self.keys]
        if timers or sum(len(groups) for _, groups in wanted) > MOST_SEEKS:
            wanted = [(b"", groups) for _, groups in wanted]
        starts = sorted({encode_prefix(group, prefix) + key for key, groups in wanted for group in groups})
        found: list[tuple[bytes, bytes | None]] = []
        for start in starts:
            # A range includes all keys that begin with its start. A start that begins with an earlier one needs none.
            if not found or not start.startswith(found[-1][0]):
                found.append((start, _find_successor(start)))
        return found


def _find_successor(key: bytes) -> bytes | None:
    """Return the smallest byte string above all that begin with `key`; None if there is none (`key` is all 0xff)."""
    rest = key.rstrip(b"\xff")
    return rest[:-1] + bytes([rest[-1] + 1]) if rest else None


_EPOCH = datetime.date(1970, 1, 1)
_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


@dataclass(frozen=True)
class KeyText:
    """A key as text of a command line or of a Spark option.

    If the keys are strings, the text is a JSON string with the key, or else the key itself (`order-1`, `42`, `null`).
    Keys of other types are written as JSON. For a key of PyFlink, which is a Row of one field, the text is that field.

    Attributes:
        text: the text.
    """

    text: str

    def read(self, kind: pa.DataType) -> object:
        """Parse the text as a key; return a value of JSON.

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
    """Return the type of the field of PyFlink's keys, Rows of one field (`KeyByKeySelector`); None for others."""
    if pa.types.is_struct(kind) and [each.name for each in kind] == ["row_kind", "f0"]:
        return kind.field("f0").type
    return None


def encode_keys(layout: Layout, keys: Sequence[object]) -> list[bytes]:
    """Encode keys as their serializer writes them.

    Args:
        layout: of the keys.
        keys: values of JSON as `read` or `dump` writes them, Python values that Arrow accepts, or `KeyText`.

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
    """Convert a value of JSON to one that Arrow accepts for a type.

    Raises:
        UsageError: the value does not have the fields of the type.
        ValueError: the value cannot be converted to the type.
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
        # Arrow would drop the fraction.
        raise ValueError(f"{value} is not a whole number")
    if pa.types.is_timestamp(kind) and value is not None:
        # The tag `@ts` of `dump` has milliseconds and the nanoseconds within the last one; other tags have
        # milliseconds.
        match value:
            case int() as millis:
                return _scale(millis * 1_000_000, kind)
            case [int() as millis, int() as nanos]:
                return _scale(millis * 1_000_000 + nanos, kind)
        raise ValueError(f"{value} is not a point in time")
    return value


def _open_mapping(value: Mapping[str, object], kind: pa.DataType) -> object:
    """Convert a JSON object: a struct by names of fields, or a value with a tag of `dump` (see `codecs.json`)."""
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
    """Parse a time of day as nanoseconds; Python's own times have microseconds only."""
    whole, _, fraction = text.partition(".")
    time = datetime.time.fromisoformat(whole)
    if len(fraction) > 9:
        raise ValueError(f"{text} has more than nine decimals")
    return ((time.hour * 60 + time.minute) * 60 + time.second) * 1_000_000_000 + int(fraction.ljust(9, "0"))


def _scale(nanos: int, kind: pa.DataType) -> int:
    """Convert nanoseconds to the unit of an Arrow type."""
    value, rest = divmod(nanos, _NANOS[kind.unit])
    if rest:
        raise ValueError(f"{nanos} nanoseconds are not a whole number of {kind.unit}")
    return value
