"""Fields that are known by position alone: the readings of a changed tuple or row.

A field that is inserted or removed shifts those after it, and nothing in a snapshot says so: a tuple of a text and a
number that becomes one of two texts and a number has a new first field, a new second one, or a new last one and a cast.
Source: `TupleSerializerBase`, `RowSerializer` and `RowDataSerializer` store types in order and no names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration import steps as st

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MOST = 6
"""Readings that are listed; rows of many equal types have one per field."""


@dataclass(frozen=True)
class Reading:
    """A way in which the fields of a struct may have become those of another.

    Attributes:
        origins: of each new field the position of the old one, None where the field is new.
        count: how many old fields there are.
    """

    origins: tuple[int | None, ...]
    count: int

    @property
    def gone(self) -> tuple[int, ...]:
        """The positions of old fields that none of the new ones was."""
        return tuple(position for position in range(self.count) if position not in self.origins)

    @property
    def text(self) -> str:
        """The reading in words."""
        said = []
        for position, origin in enumerate(self.origins):
            if origin is None:
                said.append(f"f{position} is new")
            else:
                said.append(f"f{position} stays" if origin == position else f"f{position} was f{origin}")
        return ", ".join((*said, *(f"f{position} is gone" for position in self.gone)))


def list_readings(olds: Sequence[Any], news: Sequence[Any], is_same: Callable[[Any, Any], bool]) -> tuple[Reading, ...]:
    """The readings of a changed struct, at most six; one if the fields cannot have shifted.

    A reading keeps the order of the fields and carries as many as possible with their types, keeps every position, or
    exchanges fields if the types are the same ones in another order. An old and a new field alone between two that are
    carried are one field with another type.

    Args:
        olds: the types of the old fields.
        news: the types of the new fields.
        is_same: whether a field of the first type may be one of the second.
    """
    if len(olds) == len(news) and all(map(is_same, olds, news)):
        return (Reading(tuple(range(len(olds))), len(olds)),)
    found: dict[tuple[int | None, ...], None] = {}
    for carried in _align(olds, news, is_same):
        found.setdefault(_pair_between(carried, len(olds), len(news)))
        if len(found) == _MOST:
            break
    if (exchanged := _exchange(olds, news, is_same)) is not None:
        found.setdefault(exchanged)
    found.setdefault(tuple(position if position < len(olds) else None for position in range(len(news))))
    return tuple(Reading(origins, len(olds)) for origins in [*found][:_MOST])


def _align(
    olds: Sequence[Any], news: Sequence[Any], is_same: Callable[[Any, Any], bool]
) -> Iterator[tuple[tuple[int, int], ...]]:
    """The longest common subsequences of both, as pairs of positions."""
    longest = [[0] * (len(news) + 1) for _ in range(len(olds) + 1)]
    for one in reversed(range(len(olds))):
        for other in reversed(range(len(news))):
            longest[one][other] = (
                longest[one + 1][other + 1] + 1
                if is_same(olds[one], news[other])
                else max(longest[one + 1][other], longest[one][other + 1])
            )

    found: list[tuple[tuple[int, int], ...]] = [()]
    while found:
        carried = found.pop()
        one, other = (carried[-1][0] + 1, carried[-1][1] + 1) if carried else (0, 0)
        wanted = longest[one][other]
        if not wanted:
            yield carried
            continue
        following = []
        for before in range(one, len(olds)):
            for after in range(other, len(news)):
                if longest[before][after] < wanted:
                    break
                if longest[before + 1][after + 1] == wanted - 1 and is_same(olds[before], news[after]):
                    following.append((*carried, (before, after)))
        found += reversed(following)


def _pair_between(carried: Sequence[tuple[int, int]], olds: int, news: int) -> tuple[int | None, ...]:
    """Origins: those of carried fields, and of as many old as new fields between two of them."""
    origins: list[int | None] = [None] * news
    one = other = -1
    for before, after in (*carried, (olds, news)):
        between, made = range(one + 1, before), range(other + 1, after)
        if len(between) == len(made):
            for origin, position in zip(between, made, strict=True):
                origins[position] = origin
        if after < news:
            origins[after] = before
        one, other = before, after
    return tuple(origins)


def _exchange(
    olds: Sequence[Any], news: Sequence[Any], is_same: Callable[[Any, Any], bool]
) -> tuple[int | None, ...] | None:
    """Origins if the new fields are the old ones in another order; None if they are not."""
    rest = list(range(len(olds)))
    origins: list[int | None] = []
    for new in news:
        origin = next((position for position in rest if is_same(olds[position], new)), None)
        if origin is None:
            return None
        rest.remove(origin)
        origins.append(origin)
    return None if rest else tuple(origins)


def make_steps(
    reading: Reading,
    path: str,
    names: Sequence[str],
    add: Callable[[int, str], st.Step],
    cast: Callable[[int, int], st.Step | None],
) -> list[st.Step]:
    """The steps that carry out a reading.

    Args:
        reading: the reading.
        path: of the struct, with a dot at its end; empty at the top.
        names: the columns of the old fields.
        add: the step that adds the new field of a position under a name.
        cast: the step that gives an old field the type of a new one; None where it has that type.
    """
    casts = (cast(origin, position) for position, origin in enumerate(reading.origins) if origin is not None)
    made = [step for step in casts if step is not None]
    order: list[int] = []
    columns = [*names]
    for position, origin in enumerate(reading.origins):
        if origin is None:
            columns.append(f"f{len(columns)}")
            made.append(add(position, columns[-1]))
        order.append(len(columns) - 1 if origin is None else origin)
    order += reading.gone
    if order == sorted(order):
        dropped = [names[position] for position in reading.gone]
    else:
        made.append(st.Reorder(tuple(columns[each] for each in order), path.removesuffix(".")))
        # Names that are positions are those of the new order.
        by_position = columns == [f"f{position}" for position in range(len(columns))]
        last = range(len(reading.origins), len(columns))
        dropped = [f"f{position}" if by_position else columns[order[position]] for position in last]
    return [*made, *(st.Drop(f"{path}{each}") for each in reversed(dropped))]


def require_one_reading(old: pa.DataType, new: pa.DataType) -> None:
    """Refuse types whose structs without names have more than one reading, at any depth.

    Raises:
        MigrationError: fields may have shifted.
    """
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        one, other = ([each for each in kind if each.name != "row_kind"] for kind in (old, new))
        if all(_is_positional(each) for each in (one, other)):
            readings = list_readings([each.type for each in one], [each.type for each in other], _is_alike)
            if len(readings) > 1:
                raise MigrationError("fields go by position, and may have shifted", hint=explain_readings(readings))
        known = {each.name: each.type for each in one}
        for each in other:
            if each.name in known:
                require_one_reading(known[each.name], each.type)
    elif pa.types.is_map(old) and pa.types.is_map(new):
        require_one_reading(old.item_type, new.item_type)
    elif pa.types.is_list(old) and pa.types.is_list(new):
        require_one_reading(old.value_type, new.value_type)


def _is_positional(fields: Sequence[pa.Field]) -> bool:
    return [each.name for each in fields] == [f"f{position}" for position in range(len(fields))]


def _is_alike(one: pa.DataType, other: pa.DataType) -> bool:
    return bool(one == other) or (pa.types.is_struct(one) and pa.types.is_struct(other))


def explain_readings(readings: Sequence[Reading]) -> str:
    """The readings in words."""
    more = ", or others" if len(readings) == _MOST else ""
    return "; or ".join(each.text for each in readings) + more
