"""Java hash codes of the keys of records, from their bytes.

Keys of the most frequent types are hashed from their bytes; others are decoded first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.columns import Columns, plan_columns
from state_pipelines.codecs.kryo import read_kryo_class
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout, walk
from state_pipelines.errors import FormatError, UnsupportedError, UsageError, Where, at
from state_pipelines.keyed.hashing.hash_kernels import hash_int_keys, hash_long_keys, hash_row_keys, hash_string_keys
from state_pipelines.keyed.hashing.kryo import is_hashed, unknown_kryo_hash
from state_pipelines.keyed.hashing.user_classes import class_name, field_nodes, find_unknown_classes
from state_pipelines.keyed.hashing.value_hashes import Hasher
from state_pipelines.keyed.key_group_assignment import assign_key_groups
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from state_pipelines.codecs.kryo import Version
    from state_pipelines.keyed.hashing.basic_hashes import HashCodes
    from state_pipelines.keyed.hashing.hash_expressions import HashExpression
    from state_pipelines.keyed.record_layout import KeyedRecords

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KeyHasher:
    """Hashes keys; can be sent to other processes.

    Attributes:
        key_serializer: of the keys.
        layouts: what their layouts depend on.
        expressions: `hashCode` of user classes, by class name, in order.
    """

    key_serializer: tree.Serializer
    layouts: LayoutContext
    expressions: tuple[tuple[str, HashExpression], ...] = ()

    @property
    def has_kernel(self) -> bool:
        """Return whether a kernel hashes the keys from their bytes."""
        return _find_kernel(self.key_serializer) is not None

    def hash_keys(self, records: KeyedRecords, *, skip: int = 0) -> HashCodes:
        """`hashCode()` of the key of each record.

        Args:
            records: of one state.
            skip: bytes in front of the key: 8 of timers, else 0.

        Returns:
            i32[n].

        Raises:
            FormatError: the bytes are not those of such keys.
            UnsupportedError: a key cannot be decoded, or is of a class whose hash is not known.
        """
        return self.hash_spans(
            records.data, records.key_starts + skip, records.key_ends, offset=records.offset, file=records.file
        )

    def hash_spans(
        self, data: Bytes, starts: Positions, ends: Positions, *, offset: int = 0, file: str | None = None
    ) -> HashCodes:
        """`hashCode()` of keys that begin at `data[starts[i]]`; none reaches beyond `ends[i]`, but bytes may follow.

        Args:
            data: u8.
            starts: i64[n].
            ends: i64[n].
            offset: position of `data` in its file, for errors.
            file: its name, for errors.

        Returns:
            i32[n].

        Raises:
            FormatError: the bytes are not those of such keys.
            UnsupportedError: a key cannot be decoded, or is of a class whose hash is not known.
            UsageError: a key lies outside `data`.
        """
        kernel = _find_kernel(self.key_serializer)
        if kernel is None and _is_open(self.key_serializer):
            return self._hash_by_class(self.key_serializer, data, starts, ends, offset=offset, file=file)
        if kernel is None:
            decoded = _columns(self.key_serializer, self.layouts).decode(data, starts, ends, exact=False, offset=offset)
            return self.hash_values(decoded.array)
        if len(starts) and (starts.min() < 0 or ends.max() > len(data) or bool((starts > ends).any())):
            raise UsageError(f"a key lies outside the {len(data)} bytes given")
        codes = np.empty(len(starts), np.int32)
        wrong = kernel(data.ctypes.data, np.ascontiguousarray(starts), np.ascontiguousarray(ends), codes)
        if wrong >= 0:
            where = Where(file=file, offset=offset + int(starts[wrong]))
            raise FormatError("the bytes of a key are not those of its serializer", where=where)
        return codes

    def _hash_by_class(
        self, key: tree.Kryo, data: Bytes, starts: Positions, ends: Positions, *, offset: int, file: str | None
    ) -> HashCodes:
        """Hash keys by the class that is stored with each of them, as `hash_spans`."""
        version: Version = 2 if self.layouts.kryo_version == 2 else 5
        codes = np.zeros(len(starts), np.int32)
        rows: dict[str, list[int]] = {}
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            with at(file=file):
                stored = read_kryo_class(Reader(data[start:end].tobytes()), key, version)
            if stored is None:
                raise FormatError("a key is null", where=Where(file=file, offset=offset + start))
            rows.setdefault(stored, []).append(row)
        for stored, chosen in rows.items():
            hasher = KeyHasher(replace(key, type_class=stored), self.layouts, self.expressions)
            if _is_open(hasher.key_serializer):
                raise unknown_kryo_hash(stored)
            codes[chosen] = hasher.hash_spans(data, starts[chosen], ends[chosen], offset=offset, file=file)
        return codes

    def hash_values(self, keys: pa.Array) -> HashCodes:
        """`hashCode()` of keys in the Arrow form of their layout; errors as `hash_codes`."""
        return Hasher(expressions=dict(self.expressions)).hash(self.key_serializer, keys)

    def assign_keys(self, records: KeyedRecords, max_parallelism: int, *, skip: int = 0) -> npt.NDArray[np.int32]:
        """The key group of each record by the hash of its key; as `hash_keys`."""
        return assign_key_groups(self.hash_keys(records, skip=skip), max_parallelism)


def make_key_hasher(
    key_serializer: tree.Serializer, layouts: LayoutContext, expressions: Mapping[str, HashExpression] | None = None
) -> KeyHasher:
    """A hasher of keys, after all has been checked that can be without keys.

    Args:
        key_serializer: of the keys.
        layouts: what their layouts depend on.
        expressions: by class name, the `hashCode` of user classes.

    Raises:
        UsageError: values of the type cannot be keys, or an expression names a field or a class that is not there.
        UnsupportedError: the hash of a class is not known.
    """
    given = dict(expressions or {})
    classes = {name: node for node in walk(key_serializer) if (name := class_name(node)) is not None}
    for name, expression in given.items():
        if name not in classes:
            known = ", ".join(classes) or "none"
            raise UsageError(
                f"a hash is given for {name}, which is no part of the key", hint=f"Classes of the key: {known}"
            )
        names = field_nodes(classes[name])
        unknown = [each for each in expression.fields if each not in names]
        if unknown:
            raise UsageError(
                f"{name} has no field {', '.join(unknown)}, which its hash {expression} takes",
                hint=f"Its fields are {', '.join(names)}",
            )
    hasher = KeyHasher(key_serializer, layouts, tuple(sorted(given.items(), key=lambda each: each[0])))
    if _find_kernel(key_serializer) is None and not _is_open(key_serializer):
        try:
            hasher.hash_values(pa.array([], _columns(key_serializer, layouts).type))
        except UnsupportedError:
            missing = find_unknown_classes(key_serializer, given)
            if not missing:
                raise
            raise UnsupportedError(
                f"the hashCode of {', '.join(missing)} is code of the user's that no snapshot holds",
                hint="It can be found from the snapshot, or given as an expression such as objects(a, b)",
            ) from None
    return hasher


def find_key_group(
    key_serializer: tree.Serializer, layouts: LayoutContext, key: Bytes, max_parallelism: int
) -> KeyGroupRange | None:
    """Find the key group of a key, as a range; None where only user code knows its hash, or may have changed it.

    Args:
        key_serializer: of the key.
        layouts: context of the layouts.
        key: u8, the key as its serializer writes it.
        max_parallelism: number of key groups.
    """
    hasher = KeyHasher(key_serializer, layouts)
    if not hasher.has_kernel:
        return None
    hashes = hasher.hash_spans(key, np.zeros(1, np.int64), np.full(1, len(key), np.int64))
    return KeyGroupRange(int(assign_key_groups(hashes, max_parallelism)[0]), 1)


def _is_open(serializer: tree.Serializer) -> TypeGuard[tree.Kryo]:
    """Return whether the class that Kryo stores with each key decides about its hash, such as below `Object`."""
    return isinstance(serializer, tree.Kryo) and not is_hashed(serializer.type_class)


@lru_cache(maxsize=64)
def _columns(serializer: tree.Serializer, layouts: LayoutContext) -> Columns:
    return plan_columns(derive_layout(serializer, layouts))


def _find_kernel(serializer: tree.Serializer) -> Callable[..., int] | None:
    match serializer:
        case tree.Basic(kind=BasicKind.STRING):
            return hash_string_keys
        case tree.Basic(kind=BasicKind.LONG):
            return hash_long_keys
        case tree.Basic(kind=BasicKind.INT):
            return hash_int_keys
        case tree.RowData() | tree.BinaryRow():
            return hash_row_keys
        case _:
            return None
