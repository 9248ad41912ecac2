"""Messages of Protobuf and Thrift inside Kryo values, as the serializers of chill write them: a length and bytes.

* `ThriftFiles`: structs of Thrift by the text of their file, in the binary protocol (`TBinaryProtocol`). Of a file are
  read `namespace java`, typedefs, enums, structs, unions and exceptions; everything else is skipped.
* `MessageTypes`: data of Kryo serializers of classes: messages of Protobuf and Thrift, and layouts that the user
  declares. Types of messages are declared: a set of Protobuf descriptors, or the text of a Thrift file. The Java class
  of a message follows from them as from the compilers: `java_package`, `java_outer_classname` and `java_multiple_files`
  of Protobuf, `namespace java` of Thrift. Source: `com.twitter.chill.protobuf.ProtobufSerializer`,
  `com.twitter.chill.thrift.TBaseSerializer`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.java import MapValue
from state_pipelines.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from state_pipelines.codecs.protobuf import ProtobufTypes

MAX_DEPTH = 64
"""Largest depth of nested values."""
# `_tidy` leaves single spaces only, so these patterns cannot match the same white space in several ways. Trying all
# ways could take minutes.
_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)|//[^\n]*|#[^\n]*", re.DOTALL)
_TOKEN = re.compile(r"\"[^\"]*\"|'[^']*'|[\w.]+|[^\s]")
_NAMESPACE = re.compile(r"^namespace java ([\w.]+)", re.MULTILINE)
_ENUM = re.compile(r"\benum\s(\w+)\s?\{([^{}]*)\}")
_CONSTANT = re.compile(r"(\w+)(?:\s*=\s*(0[xX][0-9a-fA-F]+|-?\d+))?")
_TYPEDEF = re.compile(r"\btypedef\s(.+?)\s(\w+)\s?[;,\n]")
_STRUCT = re.compile(r"\b(?:struct|union|exception)\s(\w+)\s?(?:xsd_all\s?)?\{")
_NUMBERS = {3: "i8", 4: "f64", 6: "i16", 8: "i32", 10: "i64"}
_BOOL, _STRING, _STRUCT_TYPE, _MAP, _SET, _LIST = 2, 11, 12, 13, 14, 15
_SIMPLE = {
    "bool": _BOOL,
    "byte": 3,
    "i8": 3,
    "double": 4,
    "i16": 6,
    "i32": 8,
    "i64": 10,
    "string": _STRING,
    "binary": _STRING,
}


@dataclass(frozen=True)
class ThriftType:
    """A declared type: its name, and the types of the elements of a container."""

    name: str
    inner: tuple[ThriftType, ...] = ()


@dataclass
class ThriftFiles:
    """The structs of Thrift files.

    Attributes:
        texts: contents of the files.
        classes: Java class -> name of the struct.
    """

    texts: Iterable[str]
    classes: dict[str, str] = field(default_factory=dict)
    _structs: dict[str, dict[int, tuple[str, ThriftType]]] = field(default_factory=dict)
    _enums: dict[str, dict[int, str]] = field(default_factory=dict)
    _aliases: dict[str, ThriftType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for text in self.texts:
            self._load(_tidy(text))

    def _load(self, text: str) -> None:
        namespace = _NAMESPACE.search(text)
        package = f"{namespace[1]}." if namespace else ""
        for enum in _ENUM.finditer(text):
            constants, number = {}, 0
            for name, given in _CONSTANT.findall(enum[2]):
                number = _parse_number(given) if given else number
                constants[number] = name
                number += 1
            self._enums[enum[1]] = constants
        for alias in _TYPEDEF.finditer(text):
            self._aliases[alias[2]] = _Parser(alias[1]).type()
        for struct in _STRUCT.finditer(text):
            self._structs[struct[1]] = _Parser(_take_block(text, struct.end())).fields()
            self.classes[f"{package}{struct[1]}"] = struct[1]

    def decode(self, class_name: str, raw: bytes) -> Mapping[str, object]:
        """Decode the bytes of a struct to its fields by name; fields that were not written are None.

        Raises:
            FormatError: the bytes are not such a struct.
        """
        reader = Reader(raw, class_name)
        value = self._struct(reader, self.classes[class_name], 0)
        reader.expect_end("a struct of Thrift")
        return value

    def _struct(self, reader: Reader, name: str | None, depth: int) -> dict[str, object]:
        declared = self._structs.get(name or "", {})
        found: dict[str, object] = {known: None for known, _ in declared.values()}
        while kind := reader.u8():
            number = reader.i16()
            known, of = declared.get(number, (str(number), None))
            found[known] = self._value(reader, kind, of, depth + 1)
        return found

    def _value(self, reader: Reader, kind: int, declared: ThriftType | None, depth: int) -> object:
        """Read a value of the wire type `kind`. The declared type gives names, and distinguishes text from bytes."""
        if depth > MAX_DEPTH:
            raise reader.error(f"Thrift values are nested more than {MAX_DEPTH} levels deep")
        of = self._resolve(declared)
        start = reader.position
        if kind == _BOOL:
            return reader.bool()
        if kind in _NUMBERS:
            number = getattr(reader, _NUMBERS[kind])()
            return self._enums.get(of.name if of else "", {}).get(number, number)
        if kind == _STRING:
            return self._text(reader, of)
        if kind == _STRUCT_TYPE:
            return self._struct(reader, of.name if of else None, depth)
        inner = of.inner if of and of.inner else ()
        if kind == _MAP:
            kinds = reader.u8(), reader.u8()
            types = (inner[0], inner[1]) if len(inner) == 2 else (None, None)
            entries = tuple(
                (self._value(reader, kinds[0], types[0], depth + 1), self._value(reader, kinds[1], types[1], depth + 1))
                for _ in range(reader.count(2))
            )
            return MapValue("java.util.Map", entries)
        if kind in (_SET, _LIST):
            element = reader.u8()
            type_ = inner[0] if inner else None
            return [self._value(reader, element, type_, depth + 1) for _ in range(reader.count(1))]
        raise reader.error(f"{kind} is no type of Thrift's binary protocol", start)

    def _text(self, reader: Reader, of: ThriftType | None) -> object:
        raw = reader.bytes32()
        if of is not None and of.name == "binary":
            return raw
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return raw

    def _resolve(self, of: ThriftType | None) -> ThriftType | None:
        seen: set[str] = set()
        while of is not None and (simple := of.name.rpartition(".")[2]) in self._aliases and simple not in seen:
            seen.add(simple)
            of = self._aliases[simple]
        if of is not None and of.name not in _SIMPLE and "." in of.name:
            return ThriftType(of.name.rpartition(".")[2], of.inner)
        return of


def _tidy(text: str) -> str:
    """Return a Thrift file without comments and empty lines, with single spaces."""
    lines = (" ".join(line.split()) for line in _COMMENT.sub(" ", text).splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def _parse_number(text: str) -> int:
    """Return a number of a Thrift file: hexadecimal after `0x`, else decimal, even with leading zeros."""
    try:
        return int(text, 16 if text[:2] in ("0x", "0X") else 10)
    except ValueError:
        raise UsageError(f"{text[:20]!r} is not a number that a Thrift file can hold") from None


def _take_block(text: str, start: int) -> str:
    """Return the text from `start`, just after an opening brace, up to the brace that closes it.

    Default values may contain braces, too.
    """
    depth = 1
    for token in _TOKEN.finditer(text, start):
        depth += (token[0] == "{") - (token[0] == "}")
        if not depth:
            return text[start : token.start()]
    raise UsageError("a struct of the Thrift file has no closing brace")


class _Parser:
    """Parser of the fields of a Thrift struct, or of one type."""

    def __init__(self, text: str) -> None:
        self.tokens = _TOKEN.findall(text)
        self.at = 0

    def take(self) -> str:
        if self.at >= len(self.tokens):
            raise UsageError("a declaration of the Thrift file ends too early")
        self.at += 1
        return str(self.tokens[self.at - 1])

    def peek(self) -> str:
        return str(self.tokens[self.at]) if self.at < len(self.tokens) else ""

    def type(self, depth: int = 0) -> ThriftType:
        if depth > MAX_DEPTH:
            raise UsageError(f"types of the Thrift file are nested more than {MAX_DEPTH} levels deep")
        name = self.take()
        if self.peek() != "<":
            return ThriftType(name)
        inner = []
        while self.take() in ("<", ","):
            inner.append(self.type(depth + 1))
        return ThriftType(name, tuple(inner))

    def fields(self) -> dict[int, tuple[str, ThriftType]]:
        found: dict[int, tuple[str, ThriftType]] = {}
        while self.peek():
            number = self.take()
            if not number.isdigit() or self.take() != ":":
                raise UsageError(
                    f"{number!r} is not the number of a field in the Thrift file",
                    hint="Number every field: `1: i32 id`",
                )
            if self.peek() in ("required", "optional"):
                self.take()
            of = self.type()
            found[_parse_number(number)] = (self.take(), of)
            self._skip_rest()
        return found

    def _skip_rest(self) -> None:
        """Skip a default value and annotations, up to the next field."""
        depth = 0
        while self.peek():
            if depth == 0 and self.peek().isdigit() and self.tokens[self.at + 1 : self.at + 2] == [":"]:
                return
            token = self.take()
            depth += (token in "([{") - (token in ")]}")
            if depth == 0 and token in (",", ";"):
                return


class MessageFormat(Enum):
    """Library that wrote a message."""

    PROTOBUF = auto()
    THRIFT = auto()


SERIALIZERS: dict[str, MessageFormat] = {
    "com.twitter.chill.protobuf.ProtobufSerializer": MessageFormat.PROTOBUF,
    "com.twitter.chill.thrift.TBaseSerializer": MessageFormat.THRIFT,
}
"""Class of a Kryo serializer -> format of the messages that it writes."""


@dataclass(frozen=True)
class MessageTypes:
    """Messages that the user declares; objects with the same declarations are equal.

    Attributes:
        protobuf: `FileDescriptorSet`s as `protoc --descriptor_set_out --include_imports` writes them.
        thrift: texts of Thrift files.
        layouts: classes with a custom Kryo serializer, and the text of the layout of the data that it writes.
    """

    protobuf: tuple[bytes, ...] = ()
    thrift: tuple[str, ...] = ()
    layouts: tuple[tuple[str, str], ...] = ()

    def check(self) -> None:
        """Parse all declarations, to find errors early.

        Raises:
            UsageError: a declaration is invalid, or the package that reads it is missing.
        """
        if self.protobuf:
            _load_protobuf(self)
        _load_thrift(self)

    def knows(self, format: MessageFormat, class_name: str) -> bool:
        """Return whether a message of a Java class is declared."""
        if format is MessageFormat.THRIFT:
            return class_name in _load_thrift(self).classes
        return bool(self.protobuf) and class_name in _load_protobuf(self).classes

    def decode(self, format: MessageFormat, class_name: str, raw: bytes) -> Mapping[str, object] | None:
        """Decode the bytes of a message to its fields by name; None if its class is not declared.

        Raises:
            FormatError: the bytes are not such a message.
        """
        if not self.knows(format, class_name):
            return None
        types = _load_thrift(self) if format is MessageFormat.THRIFT else _load_protobuf(self)
        return types.decode(class_name, raw)


def compile_proto(path: str) -> bytes:
    """Compile a `.proto` file and its imports from the same directory to a descriptor set.

    Raises:
        UsageError: there is no `protoc` on the PATH, or it refuses the file.
    """
    protoc = shutil.which("protoc")
    if protoc is None:
        raise UsageError(
            "a .proto file needs protoc on the PATH",
            hint="Or give a descriptor set: protoc --include_imports --descriptor_set_out=types.desc types.proto",
        )
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "types.desc"
        command = [protoc, "--include_imports", f"--descriptor_set_out={target}", f"-I{Path(path).parent}", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UsageError(f"protoc refuses the file: {done.stderr.strip()}")
        return target.read_bytes()


def decode_described(descriptors: bytes, name: str, raw: bytes) -> Mapping[str, object]:
    """Decode the bytes of a Protobuf message to its fields by name.

    Args:
        descriptors: a serialized `FileDescriptorSet` that declares the message.
        name: full name of the message.
        raw: bytes of the message.

    Raises:
        FormatError: the bytes are not such a message.
        UnsupportedError: the descriptors are not valid or lack the message, or the package that reads them is missing.
    """
    try:
        return _load_protobuf(MessageTypes(protobuf=(descriptors,))).decode_message(name, raw)
    except UsageError as error:
        raise UnsupportedError(error.what, hint=error.hint) from error


@lru_cache(maxsize=8)
def _load_protobuf(declared: MessageTypes) -> ProtobufTypes:
    from state_pipelines.codecs.protobuf import ProtobufTypes  # an extra: few snapshots hold messages

    return ProtobufTypes(declared.protobuf)


@lru_cache(maxsize=8)
def _load_thrift(declared: MessageTypes) -> ThriftFiles:
    return ThriftFiles(declared.thrift)
