"""Bytes of `java.math.BigInteger` and of unscaled values of `BigDecimal`, and the limit of their size.

Time to convert them to decimal digits and back grows with the square of their size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import UnsupportedError, Where

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader

MAX_BYTES = 1 << 12
"""Maximum size of a number, the same for all commands: 9,864 digits."""


def read_number(reader: Reader, size: int) -> int:
    """Read big-endian two's complement of `size` bytes.

    Raises:
        FormatError: the bytes end early.
        UnsupportedError: the number is too long.
    """
    if size > MAX_BYTES:
        check_number(size, Where(file=reader.name, offset=reader.position))
    return int.from_bytes(reader.take(size), "big", signed=True)


def twos_complement(value: int) -> bytes:
    """Return the shortest big-endian form (`BigInteger.toByteArray`)."""
    return value.to_bytes((value + (value < 0)).bit_length() // 8 + 1, "big", signed=True)


def check_number(size: int, where: Where | None = None) -> None:
    """Check the size of a number before its digits are computed.

    Raises:
        UnsupportedError: it is more than `MAX_BYTES`.
    """
    if size > MAX_BYTES:
        raise UnsupportedError(
            f"a number of {size:,} bytes is longer than the {MAX_BYTES:,} bytes whose digits are computed",
            where=where,
            hint="The bytes can be copied as they are",
        )
