"""Compatibility of a new serializer with an old one: Flink's rules, on serializer trees.

`resolve` gives the outcome that Flink's `TypeSerializerSnapshot.resolveSchemaCompatibility` gives, with the path to
every field that decides it. Where Flink does not detect that values become unreadable, the outcome is incompatible and
the finding is `unnoticed`. A custom serializer family adds a rule with `rule.register`, and with
`register_successor` a comparison with the family that it replaces.
"""

from __future__ import annotations

from state_pipelines.serializers.compatibility import objects, rules
from state_pipelines.serializers.compatibility.rules import (
    Compatibility,
    Outcome,
    SerializerDifference,
    combine,
    compare_class,
    compare_nested,
    register_successor,
    resolve,
    resolve_nested,
    rule,
    wrap_ttl_aware,
)

__all__ = [
    "Compatibility",
    "Outcome",
    "SerializerDifference",
    "combine",
    "compare_class",
    "compare_nested",
    "objects",
    "register_successor",
    "resolve",
    "resolve_nested",
    "rule",
    "rules",
    "wrap_ttl_aware",
]
