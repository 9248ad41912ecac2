"""Data of Kryo serializers of classes: messages of Protobuf and Thrift (chill), and layouts that the user declares.

Chill writes messages as a length and bytes. Their types are declared: a set of Protobuf descriptors, or the text of a
Thrift file. The Java class of a message follows from them as from the compilers: `java_package`,
`java_outer_classname` and `java_multiple_files` of Protobuf, `namespace java` of Thrift. Source:
`com.twitter.chill.protobuf.ProtobufSerializer`, `com.twitter.chill.thrift.TBaseSerializer`.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.codecs.messages.thrift import ThriftFiles
from state_pipelines.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.codecs.messages.protobuf import ProtobufTypes


class MessageFormat(Enum):
    """Library that wrote a message."""

    PROTOBUF = auto()
    THRIFT = auto()


SERIALIZERS: dict[str, MessageFormat] = {
    "com.twitter.chill.protobuf.ProtobufSerializer": MessageFormat.PROTOBUF,
    "com.twitter.chill.thrift.TBaseSerializer": MessageFormat.THRIFT,
}
"""Message format by Kryo serializer."""


@dataclass(frozen=True)
class MessageTypes:
    """Declared messages; equal where the declarations are.

    Attributes:
        protobuf: `FileDescriptorSet`s as `protoc --descriptor_set_out --include_imports` writes them.
        thrift: texts of Thrift files.
        layouts: class and text of the layout of the data that a Kryo serializer of the class writes.
    """

    protobuf: tuple[bytes, ...] = ()
    thrift: tuple[str, ...] = ()
    layouts: tuple[tuple[str, str], ...] = ()

    def check(self) -> None:
        """Read the declarations.

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
        """Return the fields of a message; None where its class is not declared.

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
    """Return the fields of a message of Protobuf by its full name and a `FileDescriptorSet`.

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
    from state_pipelines.codecs.messages.protobuf import ProtobufTypes  # an extra: few snapshots hold messages

    return ProtobufTypes(declared.protobuf)


@lru_cache(maxsize=8)
def _load_thrift(declared: MessageTypes) -> ThriftFiles:
    return ThriftFiles(declared.thrift)
