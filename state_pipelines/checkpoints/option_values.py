"""Values of Flink's options: durations, memory sizes, numbers, words (`ConfigurationUtils`)."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from state_pipelines.errors import UsageError
from state_pipelines.operations.jobs.flink_config import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable
    from enum import Enum

_SIZE = re.compile(r"(\d+)\s*([a-z]*)", re.IGNORECASE)
# `MemorySize.MemoryUnit`: a number alone counts bytes; all units are binary.
_SIZE_UNITS = {
    **dict.fromkeys(("", "b", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kibibytes"), 1 << 10),
    **dict.fromkeys(("m", "mb", "mebibytes"), 1 << 20),
    **dict.fromkeys(("g", "gb", "gibibytes"), 1 << 30),
    **dict.fromkeys(("t", "tb", "tebibytes"), 1 << 40),
}
_MAX_LONG = (1 << 63) - 1

_AnyEnum = TypeVar("_AnyEnum", bound="Enum")


def parse_millis(value: Any, key: str) -> int:
    """Parse a duration to whole milliseconds; a `timedelta` is taken as it is.

    Raises:
        UsageError: it is none.
    """
    length = value if isinstance(value, timedelta) else parse_duration(value, key)
    return length // timedelta(milliseconds=1)


def parse_memory_size(value: Any, key: str) -> int:
    """Parse a memory size, such as `20kb` or `32 MB`, to bytes (`MemorySize.parseBytes`).

    Raises:
        UsageError: it is none, or does not fit in 64 bits.
    """
    match = _SIZE.fullmatch(str(value).strip())
    unit = match and _SIZE_UNITS.get(match[2].lower())
    if match is None or unit is None:
        raise UsageError(f"{key} is {value!r}", hint="Write a memory size, such as 20kb or 1 mb")
    size = int(match[1]) * unit
    if size > _MAX_LONG:
        raise UsageError(f"{key} is {value!r}, which does not fit in 64 bits")
    return size


def parse_bool(value: Any, key: str) -> bool:
    """Parse `true` or `false`, in any case.

    Raises:
        UsageError: it is neither.
    """
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise UsageError(f"{key} is {value!r}", hint="Write true or false")
    return text == "true"


def parse_int(value: Any, key: str) -> int:
    """Parse a whole number.

    Raises:
        UsageError: it is none.
    """
    text = str(value).strip()
    if isinstance(value, bool) or re.fullmatch(r"-?\d+", text) is None:
        raise UsageError(f"{key} is {value!r}", hint="Write a whole number")
    return int(text)


def parse_float(value: Any, key: str) -> float:
    """Parse a number.

    Raises:
        UsageError: it is none.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{key} is {value!r}", hint="Write a number") from None


def parse_text(value: Any, key: str) -> str:
    """Parse a text that is not empty.

    Raises:
        UsageError: it is empty.
    """
    text = str(value).strip()
    if not text:
        raise UsageError(f"{key} is empty")
    return text


def parse_word(kind: type[_AnyEnum]) -> Callable[[Any, str], _AnyEnum]:
    """Make a parser of the members of an enumeration, in any case and with `-` for `_`, as Flink takes them."""

    def parse(value: Any, key: str) -> _AnyEnum:
        if isinstance(value, kind):
            return value
        name = str(value).strip().upper().replace("-", "_")
        if name not in kind.__members__:
            raise UsageError(f"{key} is {value!r}", hint=f"Write one of {', '.join(kind.__members__)}")
        return kind[name]

    return parse
