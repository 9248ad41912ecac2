"""New operators and states as users describe them, with the rows that they get."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError, Where, at
from state_pipelines.keyed.hashing import parse_hash_expression
from state_pipelines.keyed.state_table import TTL_COLUMN
from state_pipelines.operations.bootstrap.row_shapes import KEY_GROUP, NAMESPACE, STATE_KEY, TIMESTAMP
from state_pipelines.operations.bootstrap.value_types import resolve_type
from state_pipelines.operations.write.state_descriptions import (
    OperatorDescription,
    OperatorStateDescription,
    StateDescription,
)
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import basic, list_of, map_of, ttl
from state_pipelines.serializers.registered_states import KEYED_KINDS, StateKind
from state_pipelines.serializers.state_meta_info import TIMER_STATE
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from state_pipelines.operations.bootstrap.value_types import GivenType
    from state_pipelines.serializers.tree import Serializer


class NewStateKind(StrEnum):
    """Kind of a new state."""

    VALUE = "VALUE"
    LIST = "LIST"
    MAP = "MAP"
    REDUCING = "REDUCING"
    AGGREGATING = "AGGREGATING"
    EVENT_TIMERS = "EVENT_TIMERS"
    PROCESSING_TIMERS = "PROCESSING_TIMERS"
    SPLIT = "SPLIT"
    UNION = "UNION"
    BROADCAST = "BROADCAST"
    KAFKA = "KAFKA"


_TIMERS: Mapping[str, str] = {NewStateKind.EVENT_TIMERS: "event", NewStateKind.PROCESSING_TIMERS: "processing"}
_MODES: Mapping[str, StateKind] = {
    NewStateKind.SPLIT: StateKind.SPLIT_DISTRIBUTE,
    NewStateKind.UNION: StateKind.UNION,
    NewStateKind.BROADCAST: StateKind.BROADCAST,
}

READER_STATE = "SourceReaderState"
"""Name of the splits of a source (`SourceOperator.SPLITS_STATE_DESC`)."""

SUBTASK, LIST_INDEX = "subtask", "list_index"


@dataclass(frozen=True)
class NewState:
    """A new state and its rows.

    The columns of the rows are those that `flink-state` reads, after `columns`: `state_key`, for windows
    `state_namespace`, and then

    | kind | columns |
    |---|---|
    | VALUE, REDUCING, AGGREGATING | `value` |
    | LIST | `value`, the whole list; a key without elements has no row, or an empty list |
    | MAP | `map_key`, `map_value`: a row per entry |
    | EVENT_TIMERS, PROCESSING_TIMERS | `timestamp`, milliseconds since 1970 or a time stamp |
    | SPLIT, UNION | `value`, an element; optionally `subtask` and `list_index` |
    | BROADCAST | `map_key`, `map_value` |
    | KAFKA | `topic`, `partition`, `offset`: that of the next record to read |

    With TTL there may be `ttl_last_access`, the time of the last access (default: now). A `key_group` must agree with
    the hash of the key; it is needed for keys of user classes whose hash is not given.

    Attributes:
        name: state name; of timers that of the timer service (`user-timers` of a process function, `window-timers` of
            windows); of Kafka offsets always `SourceReaderState`.
        rows: a DataFrame, or files (see the function that takes the state).
        kind: kind of the state, or its text.
        type: serializer of the value, the whole list or map, or an element; by default what follows from the columns.
        key_type: serializer of the keys of a broadcast state; by default what follows from the column.
        namespace: serializer of the namespace: `TimeWindow` for windows.
        ttl: values, list elements and map values have a time to live.
        columns: by name of a column above, where it comes from; a column of the same name by default. Several names
            make a struct.
    """

    name: str
    rows: object = field(repr=False)
    kind: NewStateKind | str = NewStateKind.VALUE
    type: GivenType | None = None
    key_type: GivenType | None = None
    namespace: GivenType = "VoidNamespace"
    ttl: bool = False
    columns: Mapping[str, str | Sequence[str] | Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        with at(state=self.name):
            if self.kind not in tuple(NewStateKind):
                raise UsageError(f"{self.kind!r} is no kind of state", hint=f"Kinds are {', '.join(NewStateKind)}")
            unknown = [name for name in self.columns if name not in (*self.wanted, *self.optional)]
            if unknown:
                known = ", ".join((*self.wanted, *self.optional))
                raise UsageError(f"{self.kind} state has no column {', '.join(unknown)}", hint=f"It has {known}")
            for name, given in self.columns.items():
                if not given:
                    raise UsageError(f"`columns` names no column that {name} comes from")
            if self.ttl and self.kind not in KEYED_KINDS:
                raise UsageError(f"{self.kind} state has no time to live")

    @property
    def wanted(self) -> tuple[str, ...]:
        """Names of the columns that rows must have; of keyed state `state_namespace` among the others."""
        if self.kind == NewStateKind.KAFKA:
            return ("topic", "partition", "offset")
        if self.kind in _MODES:
            return ("map_key", "map_value") if self.kind == NewStateKind.BROADCAST else ("value",)
        if self.kind in _TIMERS:
            return (STATE_KEY, TIMESTAMP)
        return (STATE_KEY, "map_key", "map_value") if self.kind == NewStateKind.MAP else (STATE_KEY, "value")

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of the columns that rows may have besides."""
        if self.kind in (NewStateKind.KAFKA, NewStateKind.BROADCAST):
            return ()
        if self.kind in _MODES:
            return (SUBTASK, LIST_INDEX)
        return (NAMESPACE, KEY_GROUP, TTL_COLUMN) if self.ttl else (NAMESPACE, KEY_GROUP)

    @property
    def is_keyed(self) -> bool:
        """Whether it is keyed state or timers."""
        return self.kind in KEYED_KINDS or self.kind in _TIMERS

    @property
    def stored_name(self) -> str:
        """Name of the state in the snapshot."""
        if self.kind == NewStateKind.KAFKA:
            return READER_STATE
        return f"{TIMER_STATE}{_TIMERS[self.kind]}_{self.name}" if self.kind in _TIMERS else self.name

    def describe_keyed(self, types: Mapping[str, pa.DataType]) -> StateDescription:
        """The description of a keyed state, or of timers.

        Args:
            types: Arrow types of the columns of its rows.

        Raises:
            UsageError: a type is wrong, or does not follow from a column.
        """
        with at(state=self.name):
            namespace = resolve_type(self.namespace, types.get(NAMESPACE), NAMESPACE)
            if self.kind in _TIMERS:
                return StateDescription(self.stored_name, StateKind.TIMER, None, namespace)
            value = self._resolve_value(types)
            return StateDescription(self.name, self.kind, self._add_ttl(value) if self.ttl else value, namespace)

    def _resolve_value(self, types: Mapping[str, pa.DataType]) -> Serializer:
        if self.kind != NewStateKind.MAP or self.type is not None:
            value = resolve_type(self.type, types.get("value"), "value")
        else:
            key, item = (resolve_type(None, types.get(name), name) for name in ("map_key", "map_value"))
            value = map_of(key, item)
        for kind, node in ((NewStateKind.LIST, tree.ListOf), (NewStateKind.MAP, tree.MapOf)):
            if self.kind == kind and not isinstance(value, node):
                raise UsageError(
                    f"{kind} state needs a {kind.capitalize()} as serializer of the value, not {describe(value)}"
                )
        return value

    def _add_ttl(self, value: Serializer) -> Serializer:
        """The serializer of a value with time to live (`TtlStateFactory`): around list elements and map values."""
        match value:
            case tree.ListOf(element=element) if self.kind == NewStateKind.LIST:
                return list_of(ttl(element))
            case tree.MapOf(key=key, value=item) if self.kind == NewStateKind.MAP:
                return map_of(key, ttl(item))
            case _:
                return ttl(value)

    def describe_unkeyed(self, types: Mapping[str, pa.DataType]) -> OperatorStateDescription:
        """The description of a list or broadcast state, or of the splits of Kafka."""
        with at(state=self.name):
            if self.kind == NewStateKind.KAFKA:
                return OperatorStateDescription(READER_STATE, basic(BasicKind.BYTE_PRIMITIVE_ARRAY))
            if self.kind != NewStateKind.BROADCAST:
                return OperatorStateDescription(
                    self.name, resolve_type(self.type, types.get("value"), "value"), _MODES[self.kind]
                )
            key = resolve_type(self.key_type, types.get("map_key"), "map_key")
            value = resolve_type(self.type, types.get("map_value"), "map_value")
            return OperatorStateDescription(self.name, value, StateKind.BROADCAST, key)


@dataclass(frozen=True)
class NewOperator:
    """New state of one operator.

    Attributes:
        uid: uid of the operator, or its 32-digit id.
        states: its new states.
        key: serializer of the keys; by default what follows from the column `state_key`, or what the base has.
        parallelism: number of subtasks; needed for an operator that the base does not have.
        max_parallelism: number of key groups; by default what Flink would choose.
        hashes: `hashCode` of user classes in the key, by class name, such as `objects(a, b)`.
        coordinator: state of the operator coordinator, as it stores it; of a Kafka source it follows from the offsets.
    """

    uid: str
    states: Sequence[NewState]
    key: GivenType | None = None
    parallelism: int | None = None
    max_parallelism: int | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
    coordinator: bytes | None = None

    def __post_init__(self) -> None:
        """Refuse an operator without states, numbers that are none, and one name for two kinds of state."""
        if not self.states:
            raise UsageError("the operator has no states", where=Where(operator=self.uid))
        for name, value in (("parallelism", self.parallelism), ("max_parallelism", self.max_parallelism)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise UsageError(f"the {name} is {value!r}, not a positive number", where=Where(operator=self.uid))
        for name in {each.stored_name for each in self.keyed} & {each.stored_name for each in self.unkeyed}:
            raise UsageError(
                "a keyed state and an operator state have this name",
                where=Where(operator=self.uid, state=name),
                hint="Flink keeps them apart, but results and reports name states by operator and name; rename one",
            )

    @property
    def keyed(self) -> tuple[NewState, ...]:
        """The keyed states and timers."""
        return tuple(each for each in self.states if each.is_keyed)

    @property
    def unkeyed(self) -> tuple[NewState, ...]:
        """The list and broadcast states, and Kafka offsets."""
        return tuple(each for each in self.states if not each.is_keyed)

    def describe(
        self, types: Mapping[str, Mapping[str, pa.DataType]], known_key: Serializer | None, coordinator: bytes | None
    ) -> OperatorDescription:
        """The description of all its states.

        Args:
            types: by stored name of the state, Arrow types of the columns of its rows.
            known_key: serializer of the keys in the base; None when it does not have any.
            coordinator: state of the operator coordinator; None to leave it as it is.

        Raises:
            UsageError: a type is wrong, or does not follow from a column.
        """
        with at(operator=self.uid):
            key = None
            if self.keyed:
                column = types[self.keyed[0].stored_name].get(STATE_KEY)
                key = (
                    known_key
                    if self.key is None and known_key is not None
                    else resolve_type(self.key, column, STATE_KEY)
                )
            return OperatorDescription(
                self.uid,
                tuple(each.describe_keyed(types[each.stored_name]) for each in self.keyed),
                tuple(each.describe_unkeyed(types[each.stored_name]) for each in self.unkeyed),
                key,
                self.parallelism,
                self.max_parallelism,
                tuple((name, parse_hash_expression(text)) for name, text in self.hashes.items()),
                coordinator,
            )
