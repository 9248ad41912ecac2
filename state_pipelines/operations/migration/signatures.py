"""Signatures of the shape of a state: equal for shapes with equal data.

Flink matches the fields of a POJO by name, not by declaring class, and those of SQL rows by position; it lists the
subclasses that it has met so far, and takes over the registrations of Kryo. Versions of snapshot classes and notes in
Avro schemas do not change the data either. A signature leaves all of these out.
Source: `PojoSerializerSnapshotData`, `KryoSerializerSnapshot`, Avro's parsing canonical form.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from state_pipelines.operations.migration.avro_schema import expand_schema
from state_pipelines.serializers import tree
from state_pipelines.serializers.registry import is_custom

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from state_pipelines.operations.migration.shapes import StateShape

_NOTES = ("doc", "default", "order", "aliases", "namespace")
_ALIKE: Mapping[str, object] = {
    "snapshot_version": 0,
    "outer_version": 0,
    "serializer_class": "",
    "declaring_class": None,
    "java_types": (),
    "labels": None,
}


@dataclass(frozen=True)
class Signature:
    """The shape of a state, without properties that do not change its data.

    Attributes:
        kind: as of the shape.
        key: serializer of the keys; None of operator state.
        namespace: serializer of the namespace; None of operator state.
        map_key: serializer of the user keys of a map, or of the keys of broadcast state.
        payload: serializer of the value, element or map value, without TTL.
        ttl: whether values carry the time of their last access.
    """

    kind: str
    key: tree.Serializer | None
    namespace: tree.Serializer | None
    map_key: tree.Serializer | None
    payload: tree.Serializer
    ttl: bool


def sign_shape(shape: StateShape) -> Signature:
    """The signature of a shape."""
    return Signature(
        kind=shape.kind,
        key=_strip_one(shape.key),
        namespace=strip_serializer(shape.namespace) if shape.is_keyed else None,
        map_key=_strip_one(shape.map_key),
        payload=strip_serializer(shape.payload),
        ttl=shape.ttl,
    )


def sign_shapes(shapes: Iterable[StateShape]) -> dict[str, Signature]:
    """The signatures of shapes, by name of the state."""
    return {shape.name: sign_shape(shape) for shape in shapes}


def _strip_one(serializer: tree.Serializer | None) -> tree.Serializer | None:
    return None if serializer is None else strip_serializer(serializer)


def strip_serializer(serializer: tree.Serializer) -> tree.Serializer:
    """A serializer without what makes no difference."""
    stripped = _strip(serializer)
    assert isinstance(stripped, tree.Serializer)
    return stripped


def _strip(member: Any) -> Any:
    if isinstance(member, tuple):
        return tuple(map(_strip, member))
    if isinstance(member, tree.TtlAware):
        return _strip(member.inner)
    if not is_dataclass(member) or isinstance(member, type):
        return member
    # A serializer of a user may write other data with each version of its snapshot.
    alike = {} if isinstance(member, tree.Serializer) and is_custom(member) else _ALIKE
    changes = {each.name: _strip(getattr(member, each.name)) for each in fields(member) if each.name not in alike}
    changes |= {each.name: alike[each.name] for each in fields(member) if each.name in alike}
    if isinstance(member, tree.Kryo):
        changes |= {"registrations": (), "default_serializers": (), "default_serializer_classes": ()}
    if isinstance(member, tree.RowData):
        changes["names"] = None
    if isinstance(member, tree.Pojo):
        changes["non_registered"] = ()
    if isinstance(member, tree.Avro):
        changes["schema_json"] = json.dumps(strip_schema(expand_schema(member.schema_json)), sort_keys=True)
    return replace(member, **changes)


def strip_schema(node: Any) -> Any:
    """An expanded Avro schema without notes and defaults."""
    if isinstance(node, list):
        return [strip_schema(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {name: strip_schema(each) for name, each in node.items() if name not in _NOTES}
