"""TTL: how Flink 2 sees keyed state so that TTL can be switched on and off.

Up to 1.20 the serializers of state with and without TTL are different families. Since 2.0 Flink wraps both sides of
keyed state before it compares them; the content of the snapshot is unchanged.
Source: `TtlAwareSerializerSnapshot`, `TtlAwareSerializerSnapshotWrapper`.
"""

from __future__ import annotations

from dataclasses import replace

from state_pipelines.serializers import build, containers
from state_pipelines.serializers.compatibility.outcome import Compatibility, Finding, Outcome, combine, single
from state_pipelines.serializers.compatibility.rules import resolve_nested, rule
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import ListOf, MapOf, Serializer, Ttl, TtlAware


def wrap_ttl_aware(serializer: Serializer) -> Serializer:
    """Return the value serializer of a keyed state as Flink 2 compares it: lists by element, maps by value."""
    match serializer:
        case ListOf(snapshot_class=containers.LIST):
            return replace(serializer, element=_wrap(serializer.element))
        case MapOf(snapshot_class=containers.MAP):
            return replace(serializer, value=_wrap(serializer.value))
        case _:
            return _wrap(serializer)


def _wrap(serializer: Serializer) -> Serializer:
    if isinstance(serializer, TtlAware):
        return serializer
    return build.ttl_aware(serializer, ttl_enabled=isinstance(serializer, Ttl))


@rule.register(TtlAware)
def _ttl_aware(old: TtlAware, new: TtlAware) -> Compatibility:
    if old.ttl_enabled == new.ttl_enabled:
        return resolve_nested(old.inner, new.inner)
    return combine([single(_switched(old, new)), resolve_nested(_value(old), _value(new))])


def _value(node: TtlAware) -> Serializer:
    return node.inner.inner if isinstance(node.inner, Ttl) else node.inner


def _switched(old: TtlAware, new: TtlAware) -> Finding:
    reason = "TTL was switched on: every entry counts as accessed at the time of the restore"
    if old.ttl_enabled:
        reason = "TTL was switched off: the times of the last access are dropped"
    return Finding(
        path="", old=describe(old.inner), new=describe(new.inner), outcome=Outcome.AFTER_MIGRATION, reason=reason
    )
