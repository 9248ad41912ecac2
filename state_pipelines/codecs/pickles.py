"""Pickles read by their literals: numbers, text, bytes, None, booleans and containers of them; nothing is executed.

A pickle is a program for a stack machine. The instructions that look up or call anything (`GLOBAL`, `REDUCE`, `BUILD`,
…) are refused, so that an object of a class, an enum or a date has no value here. Depth and size are bounded: the memo
lets a few bytes name a structure of any size, or one that holds itself.
Source: `pickletools` of CPython, protocols 2 to 5.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.java import BYTES_PER_VALUE, ExpansionBudget, TreeSizes, count_repeated
from state_pipelines.codecs.json import Json, big_integer, hex_bytes, number, sorted_set, tagged, value_json
from state_pipelines.errors import FormatError, StateError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DEPTH = 64
"""Largest depth of nested containers."""

MAX_TWINS = 100
"""Largest number of keys of one dict or set with the same hash; finding one of them takes as many comparisons."""

_FIRST_PROTOCOL, _LAST_PROTOCOL = 2, 5
_LONGEST_INTEGER = 1 << 12
_LONGEST_NAME = 200
_LARGEST_KEY = 10_000
_SAFE_INTEGER = 1 << 63
_UNIQUE_HASHES = 1 << 60
_MARK = object()

_CALLS = {
    b"c": "GLOBAL",
    b"\x93": "STACK_GLOBAL",
    b"R": "REDUCE",
    b"b": "BUILD",
    b"i": "INST",
    b"o": "OBJ",
    b"\x81": "NEWOBJ",
    b"\x92": "NEWOBJ_EX",
    b"P": "PERSID",
    b"Q": "BINPERSID",
    b"\x82": "EXT1",
    b"\x83": "EXT2",
    b"\x84": "EXT4",
    b"\x97": "NEXT_BUFFER",
    b"\x98": "READONLY_BUFFER",
}


@dataclass(frozen=True)
class Pickled:
    """The bytes of a pickle. Its JSON is the decoded value or, if it cannot be decoded, the bytes and the reason."""

    raw: bytes = field(repr=False)


@value_json.register(Pickled)
def _(value: Pickled) -> Json:
    try:
        return pickle_json(read_pickle(value.raw))
    except StateError as error:
        return {"@undecoded": value.raw.hex(), "@reason": error.what}


def read_pickle(data: bytes) -> Any:
    """Read the value of a pickle.

    Args:
        data: the whole pickle, protocol 2 to 5.

    Returns:
        int, float, str, bytes, bytearray, bool, None, and list, tuple, dict, set and frozenset of them. A container to
        which the pickle refers twice is one Python object; no container holds itself.

    Raises:
        FormatError: the bytes are no pickle.
        UnsupportedError: the pickle holds an object of a class, is nested too deeply, or refers to the same objects so
            often that they are more values than `ExpansionBudget` allows.
    """
    machine = _Machine(Reader(data))
    try:
        value = machine.run()
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"the bytes are no pickle: {type(error).__name__} at offset {machine.at}") from None
    budget = ExpansionBudget(len(data))
    budget.spend(TreeSizes(_inspect, MAX_DEPTH, "the pickle").measure(value))
    return value


def is_pickle(data: bytes) -> bool:
    """Return whether the bytes begin and end as a pickle of protocol 2 to 5 does."""
    return len(data) > 2 and data[0] == 0x80 and _FIRST_PROTOCOL <= data[1] <= _LAST_PROTOCOL and data[-1:] == b"."


def pickle_json(value: Any) -> Json:
    """Convert a value of `read_pickle` to JSON; dicts with other keys than strings become `@map`."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return value if -_SAFE_INTEGER <= value < _SAFE_INTEGER else big_integer(value)
        case float():
            return number(value)
        case bytes() | bytearray():
            return hex_bytes(value)
        case list():
            return [pickle_json(each) for each in value]
        case tuple():
            return tagged("@tuple", [pickle_json(each) for each in value])
        case set() | frozenset():
            return sorted_set(pickle_json(each) for each in value)
        case dict():
            return _dict_json(value)
    raise UnsupportedError(f"a pickle has a value of the Python class {type(value).__name__}, which is not supported")


def _dict_json(value: dict[Any, Any]) -> Json:
    if all(isinstance(key, str) and not key.startswith("@") for key in value):
        return {key: pickle_json(item) for key, item in value.items()}
    # The entries keep the order of the dict, which in Python is part of the value.
    return tagged("@map", [[pickle_json(key), pickle_json(item)] for key, item in value.items()])


_CONTAINERS = (list, tuple, dict, set, frozenset)
_TEXTS = (str, bytes, bytearray)


def _inspect(value: Any) -> tuple[int, list[Any]]:
    """Return the number of values outside nested containers, and the list of nested containers."""
    if not isinstance(value, _CONTAINERS):
        return _count_leaf(value), []
    items = (*value, *value.values()) if isinstance(value, dict) else value
    count = 1 + sum(_count_leaf(each) for each in items if not isinstance(each, _CONTAINERS))
    return count, [each for each in items if isinstance(each, _CONTAINERS)]


def _count_leaf(value: Any) -> int:
    if isinstance(value, _TEXTS):
        return count_repeated(value)
    return 1 if not isinstance(value, int) else 1 + value.bit_length() // (8 * BYTES_PER_VALUE)


class _Machine:
    """The stack machine of pickles, limited to the instructions for literals and containers."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._keys = ExpansionBudget(reader.remaining)
        self._twins: dict[int, dict[int, int]] = {}
        self.at = 0

    def run(self) -> Any:
        """Run all instructions and return the value of the pickle.

        Raises:
            FormatError, UnsupportedError: see `read_pickle`.
        """
        if self._reader.take(1) != b"\x80" or not _FIRST_PROTOCOL <= self._reader.u8() <= _LAST_PROTOCOL:
            raise FormatError(f"the bytes do not begin as a pickle of protocol {_FIRST_PROTOCOL} to {_LAST_PROTOCOL}")
        while True:
            self.at = self._reader.position
            code = self._reader.take(1)
            if code == b".":
                break
            self._step(code)
        value = self._pop()
        if self._stack:
            raise FormatError("the pickle leaves more than one value")
        self._reader.expect_end("the pickle")
        return value

    def _step(self, code: bytes) -> None:
        if code in _CALLS:
            raise UnsupportedError(
                f"the pickle holds an object of a class{self._name(code)}, and nothing of a pickle is executed "
                f"(instruction {_CALLS[code]} at offset {self.at})"
            )
        if code in _LITERALS:
            self._stack.append(_LITERALS[code](self._reader))
        elif code in _ACTIONS:
            _ACTIONS[code](self)
        else:
            raise FormatError(f"the bytes are no pickle: instruction {code.hex()} at offset {self.at}")

    def _name(self, code: bytes) -> str:
        """Return module and name of the object that an instruction looks up, for an error; empty if not known."""
        names = self._stack[-2:]
        if code == b"c":
            lines = self._reader.take(min(self._reader.remaining, _LONGEST_NAME)).split(b"\n")
            names = [each.decode("utf-8", "replace") for each in lines[:2]]
        return f" {names[0]}.{names[1]}" if len(names) == 2 and all(isinstance(each, str) for each in names) else ""

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise FormatError(f"the bytes are not a pickle: a mark instead of a value at offset {self.at}")
        return value

    def _since_mark(self) -> list[Any]:
        for index in range(len(self._stack) - 1, -1, -1):
            if self._stack[index] is _MARK:
                values = self._stack[index + 1 :]
                del self._stack[index:]
                return values
        raise FormatError(f"the bytes are no pickle: no mark before offset {self.at}")

    def _top(self, kind: type) -> Any:
        value = self._stack[-1]
        if not isinstance(value, kind):
            raise FormatError(f"the bytes are no pickle: no {kind.__name__} to add to at offset {self.at}")
        return value

    def mark(self) -> None:
        self._stack.append(_MARK)

    def tuple_of(self, size: int) -> None:
        values = [self._pop() for _ in range(size)]
        self._stack.append(tuple(reversed(values)))

    def tuple_since_mark(self) -> None:
        self._stack.append(tuple(self._since_mark()))

    def list_since_mark(self) -> None:
        self._stack.append(self._since_mark())

    def frozenset_since_mark(self) -> None:
        values = self._since_mark()
        self._check_keys(values, {})
        self._stack.append(frozenset(values))

    def dict_since_mark(self) -> None:
        values = self._since_mark()
        self._check_keys(values[::2], {})
        self._stack.append(dict(zip(values[::2], values[1::2], strict=True)))

    def append(self) -> None:
        value = self._pop()
        self._top(list).append(value)

    def appends(self) -> None:
        values = self._since_mark()
        self._top(list).extend(values)

    def set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._insert(dict, [key])[key] = value

    def set_items(self) -> None:
        values = self._since_mark()
        self._insert(dict, values[::2]).update(zip(values[::2], values[1::2], strict=True))

    def add_items(self) -> None:
        values = self._since_mark()
        self._insert(set, values).update(values)

    def _insert(self, kind: type, keys: list[Any]) -> Any:
        """Return the dict or set on top of the stack, after checking the keys that it will get."""
        target = self._top(kind)
        self._check_keys(keys, self._twins.setdefault(id(target), {}))
        return target

    def _check_keys(self, keys: list[Any], twins: dict[int, int]) -> None:
        """Raise UnsupportedError for keys that take too long to hash or to find; `twins` counts the keys per hash."""
        for key in keys:
            # A malicious pickle cannot make such keys collide: Python salts the hashes of text and bytes, and these
            # integers are their own hashes.
            if isinstance(key, _TEXTS) or (isinstance(key, int) and -_UNIQUE_HASHES < key < _UNIQUE_HASHES):
                continue
            self._keys.spend(_count_key(key))
            count = twins[hash(key)] = twins.get(hash(key), 0) + 1
            if count > MAX_TWINS:
                raise UnsupportedError(f"the pickle has more than {MAX_TWINS} keys with the same hash")

    def memoize(self) -> None:
        self._memo[len(self._memo)] = self._remembered()

    def put(self, index: int) -> None:
        self._memo[index] = self._remembered()

    def _remembered(self) -> Any:
        value = self._pop()
        self._stack.append(value)
        return value

    def get(self, index: int) -> None:
        self._stack.append(self._memo[index])

    def u8(self) -> int:
        return self._reader.u8()

    def u32(self) -> int:
        return _unsigned(self._reader, 4)

    def drop(self) -> None:
        self._stack.pop()

    def duplicate(self) -> None:
        self._stack.append(self._remembered())

    def drop_mark(self) -> None:
        self._since_mark()

    def skip_frame(self) -> None:
        self._reader.take(8)


def _count_key(key: Any) -> int:
    """Return the number of values in a key; UnsupportedError if hashing it takes too long.

    A small pickle can hold such a key: a tuple that holds another tuple many times, and so on.
    """
    pending, count = [(key, 0)], 0
    while pending:
        count += 1
        each, depth = pending.pop()
        if count > _LARGEST_KEY or depth > MAX_DEPTH:
            raise UnsupportedError(f"the pickle has a key of more than {_LARGEST_KEY:,} values or {MAX_DEPTH} levels")
        if isinstance(each, tuple | frozenset):
            pending += [(inner, depth + 1) for inner in each]
    return count


def _unsigned(reader: Reader, width: int) -> int:
    return int.from_bytes(reader.take(width), "little")


def _sized(reader: Reader, width: int) -> bytes:
    return reader.take(_unsigned(reader, width))


def _text(width: int) -> Callable[[Reader], str]:
    return lambda reader: _sized(reader, width).decode("utf-8", "surrogatepass")


def _integer(width: int) -> Callable[[Reader], int]:
    def read(reader: Reader) -> int:
        raw = _sized(reader, width)
        if len(raw) > _LONGEST_INTEGER:
            raise UnsupportedError(f"the pickle holds an integer of {len(raw):,} bytes")
        return int.from_bytes(raw, "little", signed=True)

    return read


_LITERALS: dict[bytes, Callable[[Reader], Any]] = {
    b"N": lambda reader: None,
    b"\x88": lambda reader: True,
    b"\x89": lambda reader: False,
    b"J": lambda reader: int.from_bytes(reader.take(4), "little", signed=True),
    b"K": lambda reader: _unsigned(reader, 1),
    b"M": lambda reader: _unsigned(reader, 2),
    b"\x8a": _integer(1),
    b"\x8b": _integer(4),
    b"G": lambda reader: struct.unpack(">d", reader.take(8))[0],
    b"X": _text(4),
    b"\x8c": _text(1),
    b"\x8d": _text(8),
    b"B": lambda reader: _sized(reader, 4),
    b"C": lambda reader: _sized(reader, 1),
    b"\x8e": lambda reader: _sized(reader, 8),
    b"\x96": lambda reader: bytearray(_sized(reader, 8)),
    b")": lambda reader: (),
    b"]": lambda reader: [],
    b"}": lambda reader: {},
    b"\x8f": lambda reader: set(),
}
"""Instructions that push a value."""

_ACTIONS: dict[bytes, Callable[[_Machine], None]] = {
    b"(": _Machine.mark,
    b"\x85": lambda machine: machine.tuple_of(1),
    b"\x86": lambda machine: machine.tuple_of(2),
    b"\x87": lambda machine: machine.tuple_of(3),
    b"t": _Machine.tuple_since_mark,
    b"l": _Machine.list_since_mark,
    b"d": _Machine.dict_since_mark,
    b"\x91": _Machine.frozenset_since_mark,
    b"a": _Machine.append,
    b"e": _Machine.appends,
    b"s": _Machine.set_item,
    b"u": _Machine.set_items,
    b"\x90": _Machine.add_items,
    b"\x94": _Machine.memoize,
    b"q": lambda machine: machine.put(machine.u8()),
    b"r": lambda machine: machine.put(machine.u32()),
    b"h": lambda machine: machine.get(machine.u8()),
    b"j": lambda machine: machine.get(machine.u32()),
    b"0": _Machine.drop,
    b"1": _Machine.drop_mark,
    b"2": _Machine.duplicate,
    b"\x95": _Machine.skip_frame,
}
"""Instructions that build containers, and those of the memo."""
