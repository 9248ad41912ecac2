"""Keys of one operator: their bytes, their hashes and their key groups, one key at a time."""

from __future__ import annotations

from functools import lru_cache, partial
from operator import mul
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from state_pipelines.backends.value_codecs import Value, make_codec
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import UnsupportedError
from state_pipelines.keyed.hashing.value_hashes import make_key_hasher
from state_pipelines.keyed.key_groups import assign_key_group, key_group_prefix_size
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from state_pipelines.codecs.layout import LayoutContext
    from state_pipelines.keyed.hashing.hash_expressions import HashExpression
    from state_pipelines.serializers.tree import Serializer

HashKey: TypeAlias = "Callable[[Value, bytes], int]"
"""Java hash code of a key, given as value and as bytes; any number that is the same modulo 2**32."""

_MASK = 0xFFFFFFFF
_REMEMBERED = 1 << 16
_POWERS = tuple(pow(31, exponent, 1 << 32) for exponent in range(256))


class KeyContext:
    """Encodes keys and finds their key groups.

    Args:
        serializer: of the keys.
        max_parallelism: number of key groups.
        layouts: what layouts depend on.
        hashes: `hashCode` of user classes, by class name (see `keyed.hashing.value_hashes`).

    Raises:
        UsageError: values of the type cannot be keys.
    """

    def __init__(
        self,
        serializer: Serializer,
        max_parallelism: int,
        layouts: LayoutContext,
        hashes: Mapping[str, HashExpression] | None = None,
    ) -> None:
        self.serializer = serializer
        self.max_parallelism = max_parallelism
        self.prefix = key_group_prefix_size(max_parallelism)
        codec = make_codec(derive_layout(serializer, layouts))
        self.encode = codec.encode
        self._hash = _make_hash(serializer, layouts, hashes)

    def find_key_group(self, value: Value, raw: bytes) -> int:
        """The key group of a key, given as value and as bytes.

        Raises:
            UnsupportedError: the hash of a class is not known.
        """
        return assign_key_group(self._hash(value, raw), self.max_parallelism)


def _make_hash(serializer: Serializer, layouts: LayoutContext, hashes: Mapping[str, HashExpression] | None) -> HashKey:
    try:
        hasher = make_key_hasher(serializer, layouts, hashes)
    except UnsupportedError as error:
        # State of such keys is restored and written all the same; only its keys cannot be found.
        return partial(_refuse_key, error)
    match serializer:
        case tree.Basic(kind=BasicKind.STRING):
            return _hash_text
        case tree.Basic(kind=BasicKind.LONG):
            return _hash_long
        case tree.Basic(kind=BasicKind.INT | BasicKind.SHORT | BasicKind.BYTE):
            return _hash_int

    @lru_cache(maxsize=_REMEMBERED)
    def hash_bytes(raw: bytes) -> int:
        data = np.frombuffer(raw, np.uint8)
        return int(hasher.hash_spans(data, np.zeros(1, np.int64), np.full(1, len(raw), np.int64))[0])

    return lambda value, raw: hash_bytes(raw)


def _refuse_key(error: UnsupportedError, value: Value, raw: bytes) -> int:
    raise error


def _hash_text(value: str | None, raw: bytes) -> int:
    """`String.hashCode`: a polynomial of the UTF-16 units."""
    if value is None:
        return 0
    units = (
        value.encode("ascii") if value.isascii() else memoryview(value.encode("utf-16-le", "surrogatepass")).cast("H")
    )
    code = 0
    for start in range(0, len(units), 256):
        block = units[start : start + 256]
        size = len(block)
        code = code * (_POWERS[size] if size < 256 else _POWERS[255] * 31)
        code = (code + sum(map(mul, block, _POWERS[size - 1 :: -1]))) & _MASK
    return code


def _hash_long(value: int, raw: bytes) -> int:
    """`Long.hashCode`: the upper half exclusive-or the lower half."""
    return (value ^ (value >> 32)) & _MASK


def _hash_int(value: int, raw: bytes) -> int:
    """`Integer.hashCode`: the number itself."""
    return value & _MASK
