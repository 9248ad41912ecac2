"""Messages of Protobuf by their descriptors; needs the package `protobuf` (extra `proto`)."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from state_pipelines.codecs.java import MapValue
from state_pipelines.errors import FormatError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from google.protobuf.descriptor import FieldDescriptor

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError
except ImportError as missing:
    raise UsageError(
        "messages of Protobuf need the package protobuf", hint="Install it: pip install 'state-pipelines[proto]'"
    ) from missing


class ProtobufTypes:
    """The Protobuf messages that descriptor sets declare, by Java class and by name.

    Attributes:
        classes: Java class -> full name of the message.

    Args:
        sets: serialized `FileDescriptorSet`s.

    Raises:
        UsageError: a set is not a `FileDescriptorSet`, is not valid, or lacks a file that another file imports.
    """

    def __init__(self, sets: Iterable[bytes]) -> None:
        self.classes: dict[str, str] = {}
        self._pool = descriptor_pool.DescriptorPool()
        self._known: dict[str, Any] = {}
        files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
        for raw in sets:
            files |= {each.name: each for each in _parse_set(raw).file}
        added: set[str] = set()
        for file in files.values():
            self._add(file, files, added)

    def _add(
        self,
        file: descriptor_pb2.FileDescriptorProto,
        files: Mapping[str, descriptor_pb2.FileDescriptorProto],
        added: set[str],
    ) -> None:
        if file.name in added:
            return
        added.add(file.name)
        for name in file.dependency:
            if name not in files:
                raise UsageError(
                    f"the descriptor set lacks {name}, which {file.name} imports", hint="Use protoc --include_imports"
                )
            self._add(files[name], files, added)
        try:
            self._pool.AddSerializedFile(file.SerializeToString())
            self.classes |= dict(_list_classes(file))
        except TypeError as error:
            # Raised also for a file whose name is not UTF-8: Protobuf returns such a name as bytes.
            raise UsageError(
                f"the descriptor set of Protobuf is not valid: {file.name!r}: {error}",
                hint="Write it again with protoc",
            ) from None

    def decode(self, class_name: str, raw: bytes) -> Mapping[str, object]:
        """Decode the bytes of a message to its fields by name; absent fields are None or the default of their type.

        Raises:
            FormatError: the bytes are not such a message.
        """
        return self.decode_message(self.classes[class_name], raw)

    def decode_message(self, name: str, raw: bytes) -> Mapping[str, object]:
        """Decode the bytes of a message as `decode` does, given its full name.

        Raises:
            FormatError: the bytes are not such a message.
            UsageError: no descriptor has that name.
        """
        if name not in self._known:
            try:
                found = self._pool.FindMessageTypeByName(name)
            except KeyError:
                raise UsageError(f"the descriptors of Protobuf have no message {name}") from None
            self._known[name] = message_factory.GetMessageClass(found)
        message = self._known[name]()
        try:
            message.ParseFromString(raw)
        except DecodeError as error:
            raise FormatError(f"the bytes are not a message {name}: {error}") from None
        return _fields(message)


def _parse_set(raw: bytes) -> descriptor_pb2.FileDescriptorSet:
    try:
        return descriptor_pb2.FileDescriptorSet.FromString(raw)
    except DecodeError:
        raise UsageError(
            "the file is not a FileDescriptorSet of Protobuf",
            hint="Write one: protoc --include_imports --descriptor_set_out=types.desc types.proto",
        ) from None


def _list_classes(file: descriptor_pb2.FileDescriptorProto) -> Iterator[tuple[str, str]]:
    """Yield the Java class and the full name of every message."""
    options, prefix = file.options, f"{file.package}." if file.package else ""
    package = options.java_package or file.package
    outer = "" if options.java_multiple_files else _outer_class(file)
    for message in file.message_type:
        path = ".".join(filter(None, (package, f"{outer}${message.name}" if outer else message.name)))
        yield from _list_nested(message, path, prefix + message.name)


def _list_nested(message: descriptor_pb2.DescriptorProto, path: str, name: str) -> Iterator[tuple[str, str]]:
    yield path, name
    for each in message.nested_type:
        yield from _list_nested(each, f"{path}${each.name}", f"{name}.{each.name}")


def _outer_class(file: descriptor_pb2.FileDescriptorProto) -> str:
    """Return the name of the outer Java class that protoc generates around all messages of a file."""
    if file.options.java_outer_classname:
        return str(file.options.java_outer_classname)
    words = PurePosixPath(file.name).stem.replace("-", "_").split("_")
    name = "".join(word[:1].upper() + word[1:] for word in words)
    taken = {each.name for each in (*file.message_type, *file.enum_type, *file.service)}
    return f"{name}OuterClass" if name in taken else name


def _fields(message: Any) -> dict[str, object]:
    return {each.name: _field(message, each) for each in message.DESCRIPTOR.fields}


def _field(message: Any, field: FieldDescriptor) -> object:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        item = field.message_type.fields_by_name.get("value")
        if item is None or not field.is_repeated:
            raise UsageError(
                f"the descriptor set of Protobuf is not valid: {field.full_name} is a map without entries",
                hint="Write it again with protoc",
            )
        return MapValue("java.util.Map", tuple((key, _value(value[key], item)) for key in sorted(value)))
    if field.is_repeated:
        return [_value(each, field) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(value, field)


def _value(value: Any, field: FieldDescriptor) -> object:
    if field.message_type is not None:
        return _fields(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return value
