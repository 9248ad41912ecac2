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
    raise UnsupportedError(
        f"the hashCode of {node.type_class}, which Kryo serializes, is code that no snapshot holds",
        hint="Give the class a serializer of Flink's (a POJO), or key by one of its fields",
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
