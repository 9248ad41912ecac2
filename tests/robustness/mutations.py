"""Damage to bytes: the same for the same random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

MOST_CHANGES = 3
LONGEST = 64
"""Bytes that are copied, removed or inserted at a time."""

NUMBERS = (0, 1, -1, 0x7F, 0x80, 0xFF, 1 << 15, 1 << 16, 1 << 24, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63))
"""Numbers at the edges of their types, for lengths, counts and offsets."""


def mutate(data: bytes, chance: Random, donor: bytes) -> bytes:
    """Change bytes in one to three ways.

    Args:
        data: the bytes.
        chance: decides what is changed, and how.
        donor: bytes of the same format, parts of which are spliced in.
    """
    # Mostly one: a reader stops at the first damage that it sees.
    for _ in range(chance.choice((1, 1, 1, 2, MOST_CHANGES))):
        data = chance.choice(_WAYS)(data, chance, donor)
    return data


def _flip(data: bytes, chance: Random, _: bytes) -> bytes:
    at = _place(data, chance)
    return data[:at] + bytes(each ^ 1 << chance.randrange(8) for each in data[at : at + 1]) + data[at + 1 :]


def _overwrite(data: bytes, chance: Random, _: bytes) -> bytes:
    at = _place(data, chance)
    return data[:at] + bytes((chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256))),)) + data[at + 1 :]


def _number(data: bytes, chance: Random, _: bytes) -> bytes:
    """A length, count or offset: of 2, 4 or 8 bytes, big-endian as in Java or little-endian as in RocksDB."""
    width = chance.choice((2, 4, 8))
    at = _place(data, chance)
    value = chance.choice((*NUMBERS, len(data), len(data) - at, chance.randrange(1 << 10)))
    order = chance.choice(("big", "big", "little"))
    written = (value % (1 << 8 * width)).to_bytes(width, "big" if order == "big" else "little")
    return data[:at] + written + data[at + width :]


def _varint(data: bytes, chance: Random, _: bytes) -> bytes:
    at = _place(data, chance)
    written = b"\xff" * chance.randint(1, 9) + chance.choice((b"\x00", b"\x01", b"\x0f", b"\x7f"))
    return data[:at] + written + data[at + len(written) :]


def _truncate(data: bytes, chance: Random, _: bytes) -> bytes:
    return data[: _place(data, chance)]


def _remove(data: bytes, chance: Random, _: bytes) -> bytes:
    at = _place(data, chance)
    return data[:at] + data[at + chance.randint(1, LONGEST) :]


def _insert(data: bytes, chance: Random, _: bytes) -> bytes:
    at = _place(data, chance)
    return data[:at] + chance.randbytes(chance.randint(1, LONGEST)) + data[at:]


def _repeat(data: bytes, chance: Random, _: bytes) -> bytes:
    at = _place(data, chance)
    part = data[at : at + chance.randint(1, LONGEST)]
    return data[:at] + part * chance.randint(2, 20) + data[at + len(part) :]


def _splice(data: bytes, chance: Random, donor: bytes) -> bytes:
    at, start = _place(data, chance), _place(donor, chance)
    part = donor[start : start + chance.randint(1, 4 * LONGEST)]
    return data[:at] + part + data[at + (len(part) if chance.random() < 0.5 else 0) :]


def _join(data: bytes, chance: Random, donor: bytes) -> bytes:
    return data[: _place(data, chance)] + donor[_place(donor, chance) :]


def _place(data: bytes, chance: Random) -> int:
    """An offset; as often near the beginning, where headers are, as anywhere."""
    if not data:
        return 0
    return chance.randrange(len(data) if chance.random() < 0.5 else min(len(data), 4 * LONGEST))


_WAYS: tuple[Callable[[bytes, Random, bytes], bytes], ...] = (
    _flip,
    _overwrite,
    _number,
    _varint,
    _truncate,
    _remove,
    _insert,
    _repeat,
    _splice,
    _join,
)


SIGNS = "<>(){}[],:;?*&!|'\"#-+.\\ \n\t0129eENaN"
"""Characters that mean something in YAML, JSON or the texts of types."""

MOST_NESTED = 3_000


def mutate_text(text: str, chance: Random, donor: str) -> str:
    """As `mutate`, for texts: what results is mostly made of characters and parts that the format has."""
    for _ in range(chance.choice((1, 1, 1, 2, MOST_CHANGES))):
        at = chance.randint(0, len(text))
        end = min(len(text), at + chance.choice((0, 0, 1, 1, 5, 30)))
        start = chance.randint(0, len(donor))
        ways = (
            chance.choice(SIGNS),
            chance.choice(SIGNS) * chance.choice((2, 10, MOST_NESTED)),
            donor[start : start + chance.randint(1, LONGEST)],
            text[at:end] * chance.randint(2, 20),
            str(chance.choice(NUMBERS)),
            "",
        )
        text = text[:at] + chance.choice(ways) + text[end:]
    return text
