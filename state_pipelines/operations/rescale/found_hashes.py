"""Hash codes of the keys of an operator: known, said by the user, or proven with the snapshot itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import UnsupportedError
from state_pipelines.keyed.hashing.hash_expressions import parse_hash_expression
from state_pipelines.keyed.hashing.hash_search import find_class_hashes
from state_pipelines.keyed.hashing.value_hashes import find_unknown_classes, make_key_hasher
from state_pipelines.keyed.keys import TIMESTAMP
from state_pipelines.serializers.state_meta_info import BackendStateType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.keyed.hashing.value_hashes import KeyHasher
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Operator

SAMPLE_SIZE = 20_000
"""Records by which the hash of a class is looked for, at most, of each subtask."""

SAMPLED_BYTES = 1 << 20
"""Bytes of file that are read at a time for that, about."""


def find_key_hasher(
    operators: Sequence[Operator], key_serializer: Serializer, declared: Mapping[str, str]
) -> tuple[KeyHasher | None, tuple[str, ...]]:
    """The hasher of the keys, and the evidence for the hash of user classes in them.

    Keys are read only where such a hash is looked for. Where keys move, each must lie where its hash says
    (`hashed_keys.require_key_groups`).

    Args:
        operators: with keys of the same type; the first one that has any proves.
        key_serializer: of the keys.
        declared: by class, hash expressions of the user.

    Returns:
        None when there are no keys to prove a hash with.

    Raises:
        UnsupportedError: the hash of a class is not proven.
        UsageError: values of the type cannot be keys, or what is declared is no expression.
        StateError: state cannot be read.
    """
    layouts = operators[0].snapshot.layout_context
    known = {name: parse_hash_expression(text) for name, text in declared.items()}
    if not known and not find_unknown_classes(key_serializer, known):
        return make_key_hasher(key_serializer, layouts), ()
    for operator in operators:
        for skip, timers in ((0, False), (TIMESTAMP, True)):
            samples = _sample(operator, timers=timers)
            finding = find_class_hashes(
                key_serializer, layouts, samples, operator.max_parallelism, known=known, skip=skip
            )
            if not finding.keys:
                continue
            if not finding.proven:
                hint = "Say it with --key-hash OPERATOR:CLASS=EXPRESSION, or key_hash in the request"
                raise UnsupportedError(finding.explain(), hint=hint)
            found = (finding.explain(),) if finding.classes else ()
            return make_key_hasher(key_serializer, layouts, known | finding.expressions), found
    return None, ()


def _sample(operator: Operator, *, timers: bool) -> Iterator[KeyedRecords]:
    """Some records of every subtask."""
    kind = BackendStateType.PRIORITY_QUEUE if timers else BackendStateType.KEY_VALUE
    for _, file in operator.keyed_files:
        ids = [number for number, info in enumerate(file.header.states) if info.backend_type is kind]
        found = 0
        for split in file.split(SAMPLED_BYTES, operator.record_context) if ids else ():
            for _, records in split.scan(ids, operator.record_context):
                yield records
                found += len(records)
            if found >= SAMPLE_SIZE:
                break
