"""Rows: values with positional and, optionally, named fields (`pyflink.common.types`)."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SLOTS = ("_fields", "_values", "_row_kind")
_SHORT_KINDS = ("+I", "-U", "+U", "-D")


class RowKind(Enum):
    """The kind of change that a row is (`org.apache.flink.types.RowKind`)."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    def __str__(self) -> str:
        return _SHORT_KINDS[self.value]


class Row:
    """Values by position, and by name where the row has names.

    `Row(1, "a")` has no names. `Row(id=1, text="a")` has names, in alphabetical order. A row of names is a factory:
    `Order = Row("id", "text")`, then `Order(1, "a")`.

    Raises:
        UsageError: values with and without names.
    """

    _fields: list[str] | None
    _values: list[Any]
    _row_kind: RowKind

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and kwargs:
            raise UsageError("a Row takes values with names or without, not both")
        names = sorted(kwargs)
        self._fields = names if kwargs else None
        self._values = [kwargs[name] for name in names] if kwargs else list(args)
        self._row_kind = RowKind.INSERT

    @staticmethod
    def of_kind(row_kind: RowKind, *args: Any, **kwargs: Any) -> Row:
        """Make a row of a kind."""
        row = Row(*args, **kwargs)
        row.set_row_kind(row_kind)
        return row

    def get_row_kind(self) -> RowKind:
        """Return the kind of change."""
        return self._row_kind

    def set_row_kind(self, row_kind: RowKind) -> None:
        """Set the kind of change."""
        self._row_kind = row_kind

    def set_field_names(self, field_names: Sequence[str]) -> None:
        """Name the fields, by position."""
        self._fields = list(field_names)

    def get_fields_by_names(self, names: Sequence[str]) -> list[Any]:
        """Return the values in the order of some names; of a row without names all values in their own order.

        Raises:
            UsageError: the row has no field of a name.
        """
        if self._fields is None:
            return self._values
        missing = [name for name in names if name not in self._fields]
        if missing:
            raise UsageError(f"{self!r:.80} has no field {', '.join(missing)}")
        return [self._values[self._fields.index(name)] for name in names]

    def as_dict(self, recursive: bool = False) -> dict[str, Any]:
        """Return the values by name.

        Args:
            recursive: convert rows inside the values too.

        Raises:
            UsageError: the row has no names.
        """
        if self._fields is None:
            raise UsageError(f"{self!r:.80} has no names of fields")
        values = map(_plain, self._values) if recursive else self._values
        return dict(zip(self._fields, values, strict=True))

    def __call__(self, *args: Any) -> Row:
        """Make a row of these names.

        Raises:
            UsageError: more values than names.
        """
        if len(args) > len(self._values):
            raise UsageError(f"{len(args)} values are given for the fields {', '.join(map(str, self._values))}")
        row = Row(*args)
        row.set_field_names(self._values[: len(args)])
        row.set_row_kind(self._row_kind)
        return row

    def _position(self, name: str) -> int:
        if self._fields is None or name not in self._fields:
            raise KeyError(name)
        return self._fields.index(name)

    def __contains__(self, item: object) -> bool:
        return item in (self._values if self._fields is None else self._fields)

    def __getitem__(self, item: int | slice | str) -> Any:
        return self._values[self._position(item) if isinstance(item, str) else item]

    def __setitem__(self, key: int | slice | str, value: Any) -> None:
        self._values[self._position(key) if isinstance(key, str) else key] = value

    def __getattr__(self, item: str) -> Any:
        if item.startswith("_"):
            raise AttributeError(item)
        try:
            return self._values[self._position(item)]
        except KeyError:
            raise AttributeError(f"{self!r:.80} has no field {item}") from None

    def __setattr__(self, key: str, value: Any) -> None:
        if key not in _SLOTS:
            raise AttributeError(f"fields of a Row are set by row[{key!r}] = …")
        self.__dict__[key] = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._fields, self._values, self._row_kind)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        names = sorted(self._fields) if self._fields is not None else ()
        return hash(tuple(self.get_fields_by_names(names)))

    def __eq__(self, other: object) -> bool:
        """Compare kind and values: by name where both rows have names, by position where neither has."""
        if not isinstance(other, Row) or self._row_kind != other._row_kind:
            return False
        if self._fields is None or other._fields is None:
            return self._fields is other._fields and self._values == other._values
        return sorted(self._fields) == sorted(other._fields) and self._values == other.get_fields_by_names(self._fields)

    def __repr__(self) -> str:
        if self._fields is None:
            return f"<Row({', '.join(map(repr, self._values))})>"
        return f"Row({', '.join(f'{name}={value!r}' for name, value in zip(self._fields, self._values, strict=False))})"


def _restore(fields: list[str] | None, values: list[Any], row_kind: RowKind) -> Row:
    row = Row.of_kind(row_kind, *values)
    if fields is not None:
        row.set_field_names(fields)
    return row


def _plain(value: Any) -> Any:
    match value:
        case Row():
            return value.as_dict(recursive=True)
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case _:
            return value
