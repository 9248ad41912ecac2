"""Descriptions of new state: the operators of a savepoint, their keyed states, timers, list and broadcast states.

They say what the state is; its rows come beside them (`operations.bootstrap`, `spark.bootstrap_run`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError, Where
from state_pipelines.metadata import find_operator_id
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import VOID_NAMESPACE, timer
from state_pipelines.serializers.registered_states import KEYED_KINDS, LIST_KINDS, OPERATOR_KINDS, StateKind
from state_pipelines.serializers.state_meta_info import (
    StateMetaInfo,
    broadcast_state,
    keyed_state,
    operator_list,
    priority_queue,
)
from state_pipelines.serializers.text import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from state_pipelines.keyed.hashing import HashExpression
    from state_pipelines.serializers.tree import Serializer


"""Distribution modes of operator state, as `_metadata` names them."""


@dataclass(frozen=True)
class StateDescription:
    """A keyed state, or the timers of one service and time domain.

    Attributes:
        name: state name.
        state_type: VALUE, LIST, MAP, REDUCING, AGGREGATING or TIMER; needed for a state that the base does not have.
        value: serializer of the value (of the whole list or map); needed for a state that the base does not have;
            timers have none.
        namespace: serializer of the namespace.
    """

    name: str
    state_type: str | None = None
    value: Serializer | None = None
    namespace: Serializer = VOID_NAMESPACE

    def make_info(self, key: Serializer, known: StateMetaInfo | None) -> StateMetaInfo:
        """The meta info of the new state.

        Args:
            key: serializer of the keys of the operator.
            known: what the base says of the state; None when it does not have it.

        Raises:
            UsageError: the description lacks what the base does not know, or contradicts itself.
        """
        if self.state_type == StateKind.TIMER:
            return priority_queue(self.name, timer(key, self.namespace))
        state_type = self.state_type or (known.state_type if known else None)
        value = self.value or (known.value_serializer if known else None)
        if known is not None and self.value is None and state_type == known.state_type:
            return known
        if state_type is None or value is None:
            raise self._missing("the state type" if state_type is None else "the serializer of the value")
        if state_type not in KEYED_KINDS:
            raise UsageError(
                f"{state_type} is not a type of keyed state",
                where=Where(state=self.name),
                hint=f"Types are {', '.join(KEYED_KINDS)}",
            )
        for name, kind in ((StateKind.LIST, tree.ListOf), (StateKind.MAP, tree.MapOf)):
            if state_type == name and not isinstance(value, kind):
                raise UsageError(
                    f"{name} state needs a {name.capitalize()} as serializer of the value, not {describe(value)}",
                    where=Where(state=self.name),
                )
        namespace = known.namespace_serializer if known else self.namespace
        return keyed_state(self.name, state_type, value, namespace)

    def _missing(self, what: str) -> UsageError:
        return UsageError(f"{what} of state {self.name} is not known and must be given", where=Where(state=self.name))


@dataclass(frozen=True)
class OperatorStateDescription:
    """A list or broadcast state.

    Attributes:
        name: state name.
        value: serializer of the elements; of a broadcast state of the values.
        mode: `SPLIT`, `UNION` or `BROADCAST`.
        key: serializer of the keys of a broadcast state.
    """

    name: str
    value: Serializer
    mode: str = StateKind.SPLIT_DISTRIBUTE
    key: Serializer | None = None

    def make_info(self) -> StateMetaInfo:
        """The meta info of the new state.

        Raises:
            UsageError: an unknown mode, or a key where there is none, or none where there is one.
        """
        if self.mode not in OPERATOR_KINDS or (self.mode == StateKind.BROADCAST) != (self.key is not None):
            raise UsageError(
                f"operator state of mode {self.mode} {'with' if self.key else 'without'} a key",
                where=Where(state=self.name),
                hint=f"Modes are {', '.join(LIST_KINDS)}, and {StateKind.BROADCAST}, which has a key",
            )
        if self.key is not None:
            return broadcast_state(self.name, self.key, self.value)
        return operator_list(self.name, self.value, self.mode)


@dataclass(frozen=True)
class OperatorDescription:
    """New state of one operator.

    Attributes:
        operator: uid, or 32-digit operator id.
        keyed: keyed states and timers.
        unkeyed: list and broadcast states.
        key: serializer of the keys; needed when the base has no keyed state for the operator.
        parallelism: number of subtasks; needed for an operator that the base does not have.
        max_parallelism: number of key groups; by default what Flink would choose.
        hashes: `hashCode` of user classes in the key, by class name.
        coordinator: state of the operator coordinator; None to leave it as it is.
    """

    operator: str
    keyed: tuple[StateDescription, ...] = ()
    unkeyed: tuple[OperatorStateDescription, ...] = ()
    key: Serializer | None = None
    parallelism: int | None = None
    max_parallelism: int | None = None
    hashes: tuple[tuple[str, HashExpression], ...] = ()
    coordinator: bytes | None = None

    @property
    def operator_id(self) -> bytes:
        """The operator id, 16 bytes."""
        return find_operator_id(self.operator)


def require_distinct_names(operators: Sequence[OperatorDescription]) -> None:
    """Refuse operators that are described twice, and states of one operator with one name.

    Raises:
        UsageError: with Flink's reason.
    """
    for each in _repeated(description.operator_id.hex() for description in operators):
        label = next(one.operator for one in operators if one.operator_id.hex() == each)
        raise UsageError(
            "the operator is described twice",
            where=Where(operator=label),
            hint="A uid names one operator of a job (Flink: `Hash collision on user-specified ID`); "
            "give all its states in one description",
        )
    for description in operators:
        for names in (description.keyed, description.unkeyed):
            for name in _repeated(each.name for each in names):
                raise UsageError(
                    "two states have this name",
                    where=Where(operator=description.operator, state=name),
                    hint="Flink knows the states of an operator by their names; rename one",
                )


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
