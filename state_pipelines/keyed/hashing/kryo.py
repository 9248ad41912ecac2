"""Hash codes of classes of the JDK that Flink leaves to Kryo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.errors import UnsupportedError
from state_pipelines.keyed.hashing.basic_hashes import (
    BASIC_HASHES,
    HashCodes,
    conform_basic,
    fields_of,
    fold,
    hash_ints,
    hash_longs,
)
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    import pyarrow as pa

    from state_pipelines.serializers import tree

_KINDS = {
    "java.math.BigInteger": BasicKind.BIG_INT,
    "java.math.BigDecimal": BasicKind.BIG_DEC,
    "java.time.LocalDate": BasicKind.LOCAL_DATE,
    "java.time.LocalTime": BasicKind.LOCAL_TIME,
    "java.time.LocalDateTime": BasicKind.LOCAL_DATE_TIME,
    "java.time.Instant": BasicKind.INSTANT,
    "java.util.Date": BasicKind.DATE,
    "java.sql.Date": BasicKind.SQL_DATE,
    "java.sql.Time": BasicKind.SQL_TIME,
    "java.sql.Timestamp": BasicKind.SQL_TIMESTAMP,
    **{
        f"java.lang.{name}": BasicKind(name)
        for name in ("String", "Boolean", "Byte", "Short", "Long", "Float", "Double")
    },
    "java.lang.Integer": BasicKind.INT,
    "java.lang.Character": BasicKind.CHAR,
}


def is_hashed(class_name: str) -> bool:
    """Return whether the hash of a class that Kryo writes is known."""
    return class_name in _KINDS or class_name in _OTHERS


def hash_kryo(node: tree.Kryo, array: pa.Array) -> HashCodes:
    """`hashCode` of values that Kryo wrote, in the Arrow form of their class; what null gives does not matter.

    Raises:
        UnsupportedError: the class is not one of the JDK that is known here.
    """
    kind = _KINDS.get(node.type_class)
    if kind is not None:
        return BASIC_HASHES[kind](conform_basic(kind, array))
    if node.type_class in _OTHERS:
        return _OTHERS[node.type_class](array)
    raise unknown_kryo_hash(node.type_class)


def unknown_kryo_hash(class_name: str) -> UnsupportedError:
    """The error for a class whose hash is not known."""
    return UnsupportedError(
        f"the hashCode of {class_name}, which Kryo serializes, is code that no snapshot holds",
        hint="Another parallelism needs no hash. For other key groups, give the keys another type in a migration (a "
        "step `key: {type, expression}`) and in the job",
    )


def _hash_uuids(array: pa.Array) -> HashCodes:
    digits = "".join((text or "0" * 32).replace("-", "") for text in array.to_pylist())
    halves: npt.NDArray[np.int64] = np.frombuffer(bytes.fromhex(digits), ">i8").astype(np.int64).reshape(-1, 2)
    return fold(halves[:, 0] ^ halves[:, 1])


def _hash_durations(array: pa.Array) -> HashCodes:
    seconds, nanos = fields_of(array, "seconds", "nanos")
    return hash_longs(seconds) + hash_ints(nanos) * np.int32(51)


_OTHERS: dict[str, Callable[[pa.Array], HashCodes]] = {
    "java.util.UUID": _hash_uuids,
    "java.time.Year": hash_ints,
    "java.time.Duration": _hash_durations,
}
