"""Hash codes of Scala: `##`, case classes and tuples.

Sources: `scala.runtime.Statics`, `scala.util.hashing.MurmurHash3.productHash`. Up to 2.12 the fields alone are mixed,
from 2.13 on the name of the class in front of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.binary.data_views import split_units
from state_pipelines.keyed.hashing.basic_hashes import BASIC_HASHES, HashCodes, fold, numbers
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    import pyarrow as pa

PRODUCT_SEED = 0xCAFEBABE
NONE_HASH = 2433880
"""`None.hashCode`, which is that of its name."""


def is_tuple(node: tree.Serializer) -> bool:
    """Whether values are tuples of Scala itself, in the API that Flink had up to 1.20 (Scala 2.12)."""
    return (
        isinstance(node, tree.Tuple)
        and node.tuple_class.startswith("scala.Tuple")
        and node.snapshot_class.startswith("org.apache.flink.")
    )


def is_option(node: tree.Serializer) -> bool:
    """Whether values are options."""
    return isinstance(node, tree.Variants) and node.kind == tree.VariantKind.SCALA_OPTION


def hash_name(name: str) -> int:
    """`String.hashCode` of the name of a class as `productPrefix` gives it, as a signed number.

    Args:
        name: full name of the class.
    """
    code = 0
    for unit in split_units(name.rstrip("$").replace("$", ".").rpartition(".")[2]):
        code = (code * 31 + unit) & 0xFFFFFFFF
    return code - (1 << 32) if code >> 31 else code


def mix_product(fields: Sequence[HashCodes], prefix: int | None = None) -> HashCodes:
    """`MurmurHash3.productHash`.

    Args:
        fields: i32[n] per field, their `##`.
        prefix: hash of the name of the class, from Scala 2.13 on.

    Returns:
        i32[n].
    """
    code = np.full(len(fields[0]), PRODUCT_SEED, np.uint32)
    if prefix is not None:
        code = _mix(code, np.full(len(code), prefix & 0xFFFFFFFF, np.uint32))
    for each in fields:
        code = _mix(code, np.ascontiguousarray(each).view(np.uint32))
    code ^= np.uint32(len(fields))
    code ^= code >> np.uint32(16)
    code *= np.uint32(0x85EBCA6B)
    code ^= code >> np.uint32(13)
    code *= np.uint32(0xC2B2AE35)
    code ^= code >> np.uint32(16)
    return code.view(np.int32)


def _mix(code: npt.NDArray[np.uint32], data: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    word = data * np.uint32(0xCC9E2D51)
    word = word << np.uint32(15) | word >> np.uint32(17)
    code = code ^ word * np.uint32(0x1B873593)
    code = code << np.uint32(13) | code >> np.uint32(19)
    return code * np.uint32(5) + np.uint32(0xE6546B64)


def _hash_longs(array: pa.Array) -> HashCodes:
    values = numbers(array).astype(np.int64)
    low = values.astype(np.int32)
    return np.where(low == values, low, fold(values))


def _hash_doubles(array: pa.Array) -> HashCodes:
    values = numbers(array)
    wide = values.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        ints = np.clip(np.nan_to_num(wide), -(2.0**31), 2.0**31 - 1).astype(np.int32)
        # Java's cast gives Long.MAX_VALUE, which as a double is 2 ** 63 again.
        top = wide >= 2.0**63
        longs = np.where(top, np.iinfo(np.int64).max, np.where(top, 0, np.nan_to_num(wide)).astype(np.int64))
        floats = wide.astype(np.float32)
    # Java compares in the type of the number, so that the float 2 ** 31 equals the largest int.
    as_int = ints.astype(values.dtype) == values
    as_long = np.where(top, wide == 2.0**63, longs.astype(np.float64) == wide)
    as_float = floats.astype(np.float64) == wide
    codes = BASIC_HASHES[BasicKind.DOUBLE if values.dtype == np.float64 else BasicKind.FLOAT](array)
    codes = np.where(as_float, floats.view(np.int32), codes)
    return np.where(as_int, ints, np.where(as_long, fold(longs), codes)).astype(np.int32)


NUMBER_HASHES: dict[BasicKind, Callable[[pa.Array], HashCodes]] = {
    BasicKind.LONG: _hash_longs,
    BasicKind.DOUBLE: _hash_doubles,
    BasicKind.FLOAT: _hash_doubles,
}
"""`##` of the numbers whose `hashCode` is another."""
