"""Registry of serializer families by snapshot class name, and the functions that read and write any snapshot.

A family is a pair of functions: `read(reader, head) -> node` consumes the body of a snapshot (what follows class name
and version), `write(writer, node)` gives the same bytes back. The families of Flink register on import. A family of
one's own registers the same way, or through an entry point of the group `state_pipelines.serializers` whose module
does so; entry points are loaded the first time a class is unknown.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, TypeVar

from state_pipelines.binary.reader import Reader
from state_pipelines.errors import UnknownSerializerError, UsageError, Where
from state_pipelines.serializers.framing import (
    CompositeMarks,
    Head,
    read_composite_header,
    read_head,
    read_nested_count,
    read_outer_version,
    write_composite_header,
    write_head,
    write_nested_count,
    write_outer_version,
)
from state_pipelines.serializers.tree import Composite, Opaque, Serializer

if TYPE_CHECKING:
    from state_pipelines.binary.writer import Writer

ENTRY_POINT_GROUP = "state_pipelines.serializers"
# Real trees are less than ten deep; the bound keeps hostile bytes from exhausting the stack.
MAX_DEPTH = 64

Node = TypeVar("Node", bound=Serializer)
Read = Callable[[Reader, Head], Node]
Build = Callable[[CompositeMarks, tuple[Serializer, ...]], Node]


@dataclass(frozen=True)
class Family:
    """The pair of functions behind a snapshot class."""

    read: Callable[[Reader, Head], Serializer]
    write: Callable[[Writer, Any], None]


_families: dict[str, Family] = {}
_plugins_loaded = False
_plugins_lock = threading.Lock()
_depth: ContextVar[int] = ContextVar("depth of the snapshot being read", default=0)


def register(*snapshot_classes: str, write: Callable[[Writer, Node], None]) -> Callable[[Read[Node]], Read[Node]]:
    """Make a reader and its writer known under the names of snapshot classes; decorates the reader.

    Example::

        def write_money(writer, node):
            writer.utf(node.currency)

        @register("com.acme.MoneySerializerSnapshot", write=write_money)
        def read_money(reader, head):
            head.expect(1)
            return Money(**head.marks, currency=reader.utf())

    Args:
        snapshot_classes: binary names of the `TypeSerializerSnapshot` classes.
        write: writes the body of a node, the mirror of the decorated reader.

    Raises:
        UsageError: a name is taken by another family.
    """

    def decorate(read: Read[Node]) -> Read[Node]:
        for name in snapshot_classes:
            if name in _families and _families[name].read is not read:
                raise UsageError(f"a reader for {name} is registered already")
            _families[name] = Family(read, write)
        return read

    return decorate


def register_composite(*snapshot_classes: str, arity: int) -> Callable[[Build[Node]], Build[Node]]:
    """Make a composite family without outer data known; decorates the function that builds the node.

    Args:
        snapshot_classes: binary names of the snapshot classes.
        arity: how many nested serializers it has.
    """

    def decorate(build: Build[Node]) -> Build[Node]:
        def read(reader: Reader, head: Head) -> Serializer:
            outer_version = read_composite_header(reader, head)
            return build(head.composite_marks(outer_version), read_parts(reader, arity))

        register(*snapshot_classes, write=write_composite)(read)
        return build

    return decorate


def lookup(head: Head) -> Family:
    """The family of a snapshot class.

    Raises:
        UnknownSerializerError: no family is registered under the name.
    """
    family = _families.get(head.snapshot_class)
    if family is None:
        load_plugins()
        family = _families.get(head.snapshot_class)
    if family is None:
        raise UnknownSerializerError(
            f"no reader is registered for the serializer snapshot class {head.snapshot_class}",
            where=Where(file=head.file, offset=head.offset),
            hint="Register one with state_pipelines.serializers.registry.register, "
            f"or install a package with an entry point in the group {ENTRY_POINT_GROUP}",
        )
    return family


def read_snapshot(reader: Reader) -> Serializer:
    """Read a snapshot in the outer form, as state meta infos and key serializers hold it.

    Raises:
        UnknownSerializerError: a snapshot class without a reader; nothing behind it can be read.
        UnsupportedError: a version that is not covered.
        FormatError: the bytes are not a serializer snapshot.
    """
    read_outer_version(reader)
    return read_nested(reader)


def write_snapshot(writer: Writer, serializer: Serializer) -> None:
    """Mirror of `read_snapshot`."""
    write_outer_version(writer)
    write_nested(writer, serializer)


def read_nested(reader: Reader) -> Serializer:
    """Read a snapshot in the versioned form, as snapshots nest it.

    Raises:
        FormatError: also when snapshots nest deeper than `MAX_DEPTH`.
        UnknownSerializerError, UnsupportedError: as `read_snapshot`.
    """
    depth = _depth.get()
    if depth >= MAX_DEPTH:
        raise reader.error(f"serializer snapshots nest deeper than {MAX_DEPTH}")
    token = _depth.set(depth + 1)
    try:
        head = read_head(reader)
        return lookup(head).read(reader, head)
    finally:
        _depth.reset(token)


def write_nested(writer: Writer, serializer: Serializer) -> None:
    """Mirror of `read_nested`."""
    write_head(writer, serializer.snapshot_class, serializer.snapshot_version)
    if isinstance(serializer, Opaque):
        writer.take(serializer.raw)
    else:
        lookup(Head(serializer.snapshot_class, serializer.snapshot_version)).write(writer, serializer)


def read_parts(reader: Reader, arity: int | None = None) -> tuple[Serializer, ...]:
    """Read the list of nested snapshots at the end of a composite body.

    Args:
        reader: stands at the list.
        arity: how many there must be; None when any number is right.

    Raises:
        FormatError: another number of nested snapshots.
    """
    start = reader.position
    count = read_nested_count(reader)
    if arity is not None and count != arity:
        raise reader.error(f"{arity} nested serializers expected, {count} found", start)
    return tuple(read_nested(reader) for _ in range(count))


def write_parts(writer: Writer, parts: tuple[Serializer, ...]) -> None:
    """Mirror of `read_parts`."""
    write_nested_count(writer, len(parts))
    for part in parts:
        write_nested(writer, part)


def write_composite(writer: Writer, node: Serializer) -> None:
    """Write the body of a composite without outer data: header, nested snapshots."""
    outer_version = node.outer_version if isinstance(node, Composite) else node.snapshot_version
    write_composite_header(writer, node.snapshot_version, outer_version)
    write_parts(writer, node.nested)


def load_plugins() -> None:
    """Load the modules that installed packages name as entry points of `ENTRY_POINT_GROUP`; once per process.

    Raises:
        UsageError: one of them cannot be loaded.
    """
    global _plugins_loaded
    with _plugins_lock:
        if _plugins_loaded:
            return
        _plugins_loaded = True
    for plugin in entry_points(group=ENTRY_POINT_GROUP):
        try:
            plugin.load()
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"the serializer plug-in {plugin.name} ({plugin.value}) cannot be loaded: {error}",
                hint="Repair or uninstall the package that declares it",
            ) from error
