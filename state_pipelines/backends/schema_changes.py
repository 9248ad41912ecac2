"""The four outcomes of registering restored state with new serializers, with the errors in Flink's words.

Source: `RocksDBKeyedStateBackend.updateRestoredStateMetaInfo`, `HeapKeyedStateBackend.tryRegisterStateTable`,
`AbstractKeyedStateBackend`, `DefaultOperatorStateBackend`.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from state_pipelines.errors import StateMigrationError, UnsupportedError, UsageError, Where
from state_pipelines.serializers.compatibility import Outcome, resolve, wrap_ttl_aware
from state_pipelines.serializers.state_meta_info import BackendStateType
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import MapOf

if TYPE_CHECKING:
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer

MAP_KEY_WORDS = (
    "The new serializer for a MapState requires state migration in order for the job to proceed, since the key schema "
    "has changed. However, migration for MapState currently only allows value schema evolutions."
)


class Change(Enum):
    """Changes of the stored values."""

    NONE = "the bytes stay"
    REWRITE = "values are decoded with the old serializer and encoded with the new one"


def check_keys(old: Serializer, new: Serializer) -> None:
    """Refuse keys whose bytes the new serializer does not read; keys never migrate.

    Raises:
        StateMigrationError: they are not compatible.
        UnsupportedError: it cannot be determined, or Flink would reconfigure the serializer.
    """
    outcome = _judge(old, new, "key")
    if outcome is not Outcome.AS_IS:
        words = (
            f"The new key serializer ({describe(new)}) must be compatible with the previous key serializer "
            f"({describe(old)})."
        )
        raise _refuse(outcome, words, "")


def resolve_keyed(old: StateMetaInfo, new: StateMetaInfo, *, is_heap: bool) -> Change:
    """Compare a restored keyed state with what it is registered as.

    Args:
        old: as restored.
        new: as registered, of the same kind.
        is_heap: of the heap backend, which takes other map keys, and whose words differ a little.

    Raises:
        UsageError: the state is of another kind or type.
        StateMigrationError: the serializers are not compatible; in Flink's words.
        UnsupportedError: it cannot be determined, or Flink would reconfigure a serializer of keys or namespaces.
    """
    if old == new:
        return Change.NONE
    if old.backend_type is not new.backend_type:
        raise UsageError(f"the restored state is {old.backend_type} state, and {new.backend_type} state is registered")
    if new.backend_type is BackendStateType.PRIORITY_QUEUE:
        outcome = _judge(old.element, new.element, "timer")
        if outcome is not Outcome.AS_IS:
            raise _refuse(outcome, "The new priority queue serializer must not be incompatible.", old.name)
        return Change.NONE
    the = "For heap backends, the" if is_heap else "The"
    before, after = old.namespace_serializer, new.namespace_serializer
    outcome = _judge(before, after, "namespace")
    if outcome is not Outcome.AS_IS:
        words = (
            f"{the} new namespace serializer ({describe(after)}) must be compatible with the old namespace serializer "
            f"({describe(before)})."
        )
        raise _refuse(outcome, words, old.name)
    if old.state_type != new.state_type:
        raise UsageError(
            f"Incompatible key/value state types. Was [{old.state_type}], registered with [{new.state_type}].",
            where=Where(state=old.name),
        )
    before, after = wrap_ttl_aware(old.value_serializer), wrap_ttl_aware(new.value_serializer)
    outcome = _judge(before, after, "value")
    if outcome in (Outcome.INCOMPATIBLE, Outcome.UNDETERMINED):
        words = (
            f"{the} new state serializer ({describe(new.value_serializer)}) must not be incompatible with the old "
            f"state serializer ({describe(old.value_serializer)})."
        )
        raise _refuse(outcome, words, old.name)
    if outcome is Outcome.AS_IS:
        return Change.NONE
    # The heap backend holds objects, also of map keys: both are written with the new serializer.
    if isinstance(before, MapOf) and isinstance(after, MapOf) and not is_heap:
        keys = _judge(before.key, after.key, "map_key")
        if keys is not Outcome.AS_IS:
            raise _refuse(keys, MAP_KEY_WORDS, old.name)
    return Change.REWRITE


def resolve_operator(old: StateMetaInfo, new: StateMetaInfo) -> Change:
    """Compare a restored list or broadcast state with what it is registered as.

    Raises:
        UsageError: the state is of another kind, or its distribution mode differs.
        StateMigrationError: the serializers are not compatible; in Flink's words.
        UnsupportedError: it cannot be determined.
    """
    if old == new:
        return Change.NONE
    if old.backend_type is not new.backend_type:
        raise UsageError(f"the restored state is {old.backend_type} state, and {new.backend_type} state is registered")
    if old.distribution_mode != new.distribution_mode:
        raise UsageError(
            f"Incompatible state assignment modes. Was [{old.distribution_mode}], registered with "
            f"[{new.distribution_mode}]",
            where=Where(state=old.name),
        )
    is_list = new.backend_type is BackendStateType.OPERATOR
    sides = [("state typeSerializer for operator", old.value_serializer, new.value_serializer)]
    if not is_list:
        sides = [
            ("key typeSerializer for broadcast", old.key_serializer, new.key_serializer),
            ("value typeSerializer for broadcast", old.value_serializer, new.value_serializer),
        ]
    outcomes = []
    for words, before, after in sides:
        outcome = _judge(before, after, "value")
        if outcome in (Outcome.INCOMPATIBLE, Outcome.UNDETERMINED):
            raise _refuse(outcome, f"The new {words} state must not be incompatible.", old.name)
        outcomes.append(outcome)
    return Change.NONE if set(outcomes) == {Outcome.AS_IS} else Change.REWRITE


def _judge(old: Serializer, new: Serializer, path: str) -> Outcome:
    return Outcome.AS_IS if old == new else resolve(old, new, path).outcome


def _refuse(outcome: Outcome, words: str, state: str) -> StateMigrationError | UnsupportedError:
    where = Where(state=state or None)
    if outcome in (Outcome.UNDETERMINED, Outcome.RECONFIGURED):
        return UnsupportedError(
            f"Flink's outcome is {outcome}, which is not decided here: {words}",
            where=where,
            hint="Keep the old serializer, or change it in a migration of the snapshot",
        )
    return StateMigrationError(words, where=where, hint="Change it in a migration of the snapshot, or keep the old one")
