"""Registry of serializer families by snapshot class name, and the functions that read and write any snapshot.

A family is a pair of functions: `read(reader, head) -> node` consumes the body of a snapshot (the bytes after class
name and version), `write(writer, node)` gives the same bytes back. `register` takes any pair; `register_simple`,
`register_composite` and `register_composite_with_outer` are the base classes that Flink has for snapshots;
`snapshot_classes` checks that they follow Flink's rules. The families of Flink register on import. A family of
one's own registers the same way, or through an entry point of the group `state_pipelines.serializers` whose module does
so; entry points are loaded the first time a class is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import UnknownSerializerError, UnsupportedError, UsageError, Where
from state_pipelines.plugins import load_plugins
from state_pipelines.serializers.snapshot_classes import (
    COMPOSITE,
    CURRENT_COMPOSITE,
    NESTED,
    SNAPSHOT,
    CompositeMarks,
    Head,
    OpenBodyError,
    check_body,
    check_name,
    check_node,
    claim_serializer,
    current_reading,
    is_flinks,
    left,
    read_composite_header,
    read_head,
    read_nested_count,
    read_outer_version,
    skip_word,
    take_body,
    write_composite_header,
    write_head,
    write_nested_count,
    write_outer_version,
)
from state_pipelines.serializers.tree import Composite, Declared, Opaque, Serializer, is_built_in

ENTRY_POINT_GROUP = "state_pipelines.serializers"
# Real trees are less than ten deep; the bound keeps hostile bytes from exhausting the stack.
MAX_DEPTH = 64

# Version of `SimpleTypeSerializerSnapshot` since 1.8.
CURRENT_SIMPLE = 3

Node = TypeVar("Node", bound=Serializer)
Outer = TypeVar("Outer")
Read = Callable[[Reader, Head], Node]
Build = Callable[[CompositeMarks, tuple[Serializer, ...]], Node]
BuildWithOuter = Callable[[CompositeMarks, tuple[Serializer, ...], Outer], Node]


@dataclass(frozen=True)
class SnapshotFunctions:
    """The pair of functions that reads and writes the snapshots of a class.

    Attributes:
        read: reads the body, which follows class name and version.
        write: writes the body.
        java_objects: the body may be a stream of Java objects.
    """

    read: Callable[[Reader, Head], Serializer]
    write: Callable[[Writer, Any], None]
    java_objects: bool = False


_functions: dict[str, SnapshotFunctions] = {}
# Reader and writer of each custom node class; a second serializer with the same node class is refused.
_makers: dict[type[Serializer], SnapshotFunctions] = {}
_depth: ContextVar[int] = ContextVar("depth of the snapshot being read", default=0)


def register(
    *snapshot_classes: str,
    write: Callable[[Writer, Node], None],
    serializer: str = "",
    java_objects: bool = False,
) -> Callable[[Read[Node]], Read[Node]]:
    """Register the reader and the writer for the snapshots of serializer snapshot classes; decorates the reader.

    Example::

        def write_money(writer, node):
            writer.utf(node.currency)

        @register("com.acme.MoneySerializerSnapshot", write=write_money)
        def read_money(reader, head):
            head.expect(1)
            return Money(**head.marks, currency=reader.utf())

    The reader is the `readSnapshot` of the Java class: it gets the version that was written (`head.version`) and
    refuses versions it does not know (`head.expect`). The writer is its `writeSnapshot`, for the version of the node.
    The node corresponds to the result of `restoreSerializer`: the layout of the old data and the rule that compares a
    new serializer depend on it.

    Args:
        snapshot_classes: binary names of the `TypeSerializerSnapshot` classes.
        write: writes the body of a node, in the format that the decorated reader reads.
        serializer: binary name of the `TypeSerializer` class; with it the registry refuses a second snapshot
            class of this serializer, and a second serializer of this snapshot class.
        java_objects: the snapshot is a stream of Java objects, against Flink's advice.

    Raises:
        UsageError: a name is registered already, is not a class name that Flink finds, or is shared by two serializers.
    """
    for name in snapshot_classes:
        check_name(name)

    def decorate(read: Read[Node]) -> Read[Node]:
        functions = SnapshotFunctions(read, write, java_objects)
        for name in snapshot_classes:
            if name in _functions and _functions[name].read is not read:
                raise UsageError(f"a reader for {name} is registered already")
        if serializer:
            claim_serializer(serializer, snapshot_classes)
        _functions.update(dict.fromkeys(snapshot_classes, functions))
        return read

    return decorate


def register_composite(
    *snapshot_classes: str, arity: int, serializer: str = ""
) -> Callable[[Build[Node]], Build[Node]]:
    """Register a composite serializer without outer data; decorates the function that builds the node.

    Args:
        snapshot_classes: binary names of the snapshot classes.
        arity: number of its nested serializers.
        serializer: as in `register`.
    """

    def decorate(build: Build[Node]) -> Build[Node]:
        def read(reader: Reader, head: Head) -> Serializer:
            outer_version = read_composite_header(reader, head)
            return build(head.composite_marks(outer_version), read_nested_list(reader, arity))

        register(*snapshot_classes, write=write_composite, serializer=serializer)(read)
        return build

    return decorate


def register_simple(snapshot_class: str, *, serializer: str = "") -> Callable[[type[Node]], type[Node]]:
    """Register a serializer without parameters (`SimpleTypeSerializerSnapshot`); decorates the class of its nodes.

    Its snapshot holds nothing but class name and version, and another simple serializer is never compatible.

    Args:
        snapshot_class: binary name of the snapshot class.
        serializer: as in `register`.
    """

    def decorate(node: type[Node]) -> type[Node]:
        def read(reader: Reader, head: Head) -> Node:
            head.expect(CURRENT_SIMPLE)
            return node(**head.marks)

        register(snapshot_class, write=_write_nothing, serializer=serializer)(read)
        return node

    return decorate


def register_composite_with_outer(
    snapshot_class: str,
    *,
    read_outer: Callable[[Reader, int], Outer],
    write_outer: Callable[[Writer, Node], None],
    arity: int | None = None,
    serializer: str = "",
) -> Callable[[BuildWithOuter[Outer, Node]], BuildWithOuter[Outer, Node]]:
    """Register a composite serializer with outer data (`CompositeTypeSerializerSnapshot`); decorates the builder.

    The outer data have their own version: `read_outer` gets the version that was written (`readOuterSnapshot`), and
    `write_outer` writes the version of the node (`writeOuterSnapshot`). A rule may compare the outer data and pass its
    findings to `compare_nested` (`resolveOuterSchemaCompatibility`). Without a rule, differences in the outer data make
    the outcome undetermined.

    Args:
        snapshot_class: binary name of the snapshot class.
        read_outer: reads the outer data, given the reader and the version.
        write_outer: writes the outer data, given the writer and the node.
        arity: number of its nested serializers; None if any number is valid.
        serializer: as in `register`.
    """

    def decorate(build: BuildWithOuter[Outer, Node]) -> BuildWithOuter[Outer, Node]:
        def read(reader: Reader, head: Head) -> Node:
            version = read_composite_header(reader, head)
            outer = read_outer(reader, version)
            return build(head.composite_marks(version), read_nested_list(reader, arity), outer)

        def write(writer: Writer, node: Node) -> None:
            outer = Writer()
            write_outer(outer, node)
            check_body(node.snapshot_class, outer.getvalue())
            write_composite_header(writer, node.snapshot_version, _outer_version(node))
            writer.take(outer.getvalue())
            write_nested_list(writer, node.nested)

        register(snapshot_class, write=write, serializer=serializer)(read)
        return build

    return decorate


def _write_nothing(writer: Writer, node: Serializer) -> None:
    """Write the empty body of a simple snapshot."""


def lookup(head: Head) -> SnapshotFunctions:
    """Return reader and writer of a snapshot class.

    Raises:
        UnknownSerializerError: no reader is registered for the class.
    """
    if not is_registered(head.snapshot_class):
        raise UnknownSerializerError(
            f"no reader is registered for the serializer snapshot class {head.snapshot_class}",
            where=Where(file=head.file, offset=head.offset),
            hint=f"Declare it (`--serializer '{head.snapshot_class}=LAYOUT'`, option serializers), or register a "
            "reader with state_pipelines.serializers.registry.register",
        )
    return _functions[head.snapshot_class]


def is_registered(snapshot_class: str) -> bool:
    """Return whether a reader is registered for the snapshot class; loads plug-ins if none is registered yet."""
    if snapshot_class not in _functions:
        load_plugins(ENTRY_POINT_GROUP, "serializer")
    return snapshot_class in _functions


def is_custom(node: Serializer) -> bool:
    """Return whether a node is of a registered serializer that is not Flink's."""
    return not is_built_in(type(node)) and not is_flinks(node.snapshot_class) and node.snapshot_class in _functions


def is_simple(snapshot_class: str) -> bool:
    """Return whether a registered snapshot class stores nothing but its name and version (`register_simple`)."""
    return snapshot_class in _functions and _functions[snapshot_class].write is _write_nothing


def read_snapshot(reader: Reader) -> Serializer:
    """Read a serializer snapshot with the outer version before it, as state meta infos and key serializers store it.

    Inside `read_settled`, a snapshot whose class has no reader becomes an `Opaque` node instead of an error.

    Raises:
        UnknownSerializerError: no reader is registered for a snapshot class, so that nothing after it can be read.
        UnsupportedError: a version is not supported.
        FormatError: the bytes are not a serializer snapshot.
    """
    start = reader.position
    state = current_reading()
    if state is not None and start in state.done:
        reader.position, known, state.used = state.done[start]
        state.skipped += reader.position - start
        state.snapshots.append((start, reader.position, known))
        return known
    read_outer_version(reader)
    if state is not None and start in state.whole:
        return _read_whole(reader, state.whole[start])
    node = read_nested(reader)
    if state is not None:
        state.snapshots.append((start, reader.position, node))
    return node


def _read_whole(reader: Reader, end: int) -> Opaque:
    """Read a snapshot up to `end` as one `Opaque` node, because the ends of its nested snapshots are not known."""
    head = read_head(reader)
    if end < reader.position:
        raise reader.error("a snapshot ends before its body begins", end)
    reason = f"the snapshots nested in {head.snapshot_class} cannot be separated: one of them has no reader"
    raw = reader.take(end - reader.position)
    return Opaque(**head.marks, unknown_class=head.snapshot_class, raw=raw, reason=reason)


def write_snapshot(writer: Writer, serializer: Serializer) -> None:
    """Write a serializer snapshot as `read_snapshot` reads it."""
    write_outer_version(writer)
    write_nested(writer, serializer)


def read_nested(reader: Reader) -> Serializer:
    """Read a nested snapshot: class name, version, body.

    Raises:
        FormatError: the bytes are not a serializer snapshot, or snapshots nest deeper than `MAX_DEPTH`.
        UnknownSerializerError, UnsupportedError: as in `read_snapshot`.
        UsageError: a registered reader makes nodes of the wrong class, or of the class of another serializer.
    """
    return _read_headed(reader, read_head)


def read_unversioned(reader: Reader, find_version: Callable[[str], int]) -> Serializer:
    """Read a nested snapshot that is stored without the version of its class.

    Args:
        reader: the cursor, at the name of the class.
        find_version: returns the version that a snapshot class had.

    Raises:
        FormatError, UnsupportedError, UsageError: as in `read_nested`.
    """

    def read_name(of: Reader) -> Head:
        offset, name = of.position, of.utf()
        return Head(name, find_version(name), of.name, offset)

    return _read_headed(reader, read_name)


def _read_headed(reader: Reader, read_head: Callable[[Reader], Head]) -> Serializer:
    depth = _depth.get()
    if depth >= MAX_DEPTH:
        raise reader.error(f"serializer snapshots nest deeper than {MAX_DEPTH}")
    token = _depth.set(depth + 1)
    try:
        head = read_head(reader)
        start = reader.position
        try:
            functions = lookup(head)
            node = functions.read(reader, head)
        except OpenBodyError:
            raise
        except UnsupportedError as error:
            reader.position = start
            return _read_unknown(reader, head, error)
        check_node(head.snapshot_class, head.version, node)
        _claim_node(functions, head.snapshot_class, node)
        return node
    finally:
        _depth.reset(token)


def _read_unknown(reader: Reader, head: Head, error: UnsupportedError) -> Serializer:
    """Read a snapshot whose class has no reader: according to the user's declaration, or as bytes.

    Raises:
        UnsupportedError: this is `error`, outside of `read_settled`; or the end of the body is not known.
        FormatError: the bytes do not fit the declaration, or the class name is not a name.
    """
    state = current_reading()
    if state is None:
        raise error
    declared = state.declared.get(head.snapshot_class)
    if state.used and declared is None:
        _check_guess(reader, head)
    if declared is None:
        reason = "" if isinstance(error, UnknownSerializerError) else str(error)
        opaque = Opaque(**head.marks, unknown_class=head.snapshot_class, raw=None, reason=reason)
        return replace(opaque, raw=take_body(reader, head, opaque, error))
    node = Declared(**head.marks, unknown_class=head.snapshot_class, raw=b"", layout=declared.layout)
    if declared.body is not None:
        start = reader.position
        nested = tuple(each for word in declared.body for each in _read_word(reader, head, word))
        return replace(node, raw=reader.data[start : reader.position], serializers=nested)
    if state.empty_bodies:
        state.used += 1
        return node
    return replace(node, raw=take_body(reader, head, replace(node, raw=None), error))


def _read_word(reader: Reader, head: Head, word: str) -> tuple[Serializer, ...]:
    if word == SNAPSHOT:
        return (read_nested(reader),)
    if word == COMPOSITE:
        read_composite_header(reader, Head(head.snapshot_class, CURRENT_COMPOSITE, head.file, head.offset))
        return read_nested_list(reader)
    skip_word(reader, word)
    return ()


def _check_guess(reader: Reader, head: Head) -> None:
    """Check a class name whose offset follows from an assumed end of a body before it.

    Raises:
        FormatError: the text cannot be the name of a snapshot class, so the assumption is wrong.
    """
    try:
        check_name(head.snapshot_class)
    except UsageError:
        raise reader.error("no class has such a name", head.offset) from None
    if head.snapshot_class.endswith("_SERIALIZER"):
        raise reader.error("the key of a serializer is not a class", head.offset)


def write_nested(writer: Writer, serializer: Serializer) -> None:
    """Write a nested snapshot as `read_nested` reads it."""
    write_head(writer, serializer.snapshot_class, serializer.snapshot_version)
    _write_body(writer, serializer)


def write_unversioned(writer: Writer, serializer: Serializer) -> None:
    """Write a nested snapshot as `read_unversioned` reads it."""
    writer.utf(serializer.snapshot_class)
    _write_body(writer, serializer)


def _write_body(writer: Writer, serializer: Serializer) -> None:
    if isinstance(serializer, Opaque):
        if serializer.raw is None:
            raise UnsupportedError(
                f"the snapshot of {serializer.unknown_class} cannot be written: where its bytes end is not known",
                hint=f"Declare the class (`--serializer '{serializer.unknown_class}=LAYOUT'`)",
            )
        writer.take(serializer.raw)
    else:
        functions = lookup(Head(serializer.snapshot_class, serializer.snapshot_version))
        body = Writer()
        functions.write(body, serializer)
        if not functions.java_objects:
            check_body(serializer.snapshot_class, body.getvalue())
        writer.take(body.getvalue())


def _claim_node(functions: SnapshotFunctions, snapshot_class: str, node: Serializer) -> None:
    """Raise UsageError if two custom serializers share a node class: rules and layouts could not tell them apart."""
    if is_flinks(snapshot_class) or is_built_in(type(node)):
        return
    maker = _makers.setdefault(type(node), functions)
    if maker.read is not functions.read:
        names = " and ".join(
            sorted(name for name, each in _functions.items() if each.read in (maker.read, functions.read))
        )
        raise UsageError(
            f"{names} share the node {type(node).__name__}, but they are snapshots of different serializers",
            hint="Give each of them a node of its own",
        )


def read_nested_list(reader: Reader, arity: int | None = None) -> tuple[Serializer, ...]:
    """Read the list of nested snapshots at the end of a composite body.

    Args:
        reader: the cursor, at the list.
        arity: required number of snapshots; None if any number is valid.

    Raises:
        FormatError: another number of nested snapshots.
    """
    start = reader.position
    count = read_nested_count(reader)
    if arity is not None and count != arity:
        raise reader.error(f"{arity} nested serializers expected, {count} found", start)
    found = []
    for index in range(count):
        with left(NESTED, start, count - index):
            found.append(read_nested(reader))
    return tuple(found)


def write_nested_list(writer: Writer, nested: tuple[Serializer, ...]) -> None:
    """Write a list of nested snapshots as `read_nested_list` reads it."""
    write_nested_count(writer, len(nested))
    for each in nested:
        write_nested(writer, each)


def write_composite(writer: Writer, node: Serializer) -> None:
    """Write the body of a composite serializer snapshot without outer data: header, nested snapshots."""
    write_composite_header(writer, node.snapshot_version, _outer_version(node))
    write_nested_list(writer, node.nested)


def _outer_version(node: Serializer) -> int:
    return node.outer_version if isinstance(node, Composite) else node.snapshot_version
