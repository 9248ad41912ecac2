"""Headers of serializer snapshots: versions, frames, and the classes of which only a name may be known.

* `find_releases`, `list_releases`: a serializer snapshot names its class, which Flink loads by that name before it
  reads anything else (`TypeSerializerSnapshot.readVersionedSnapshot`, `InstantiationUtil.resolveClassByName`). The
  table next to this module has the classes of each release, read from the jars of the distributions.
* `check_name`, `claim_serializer`, `check_node`, `check_body`: custom serializers are checked against what Flink asks
  of snapshot classes ("Custom Serialization for Managed State", implementation notes and best practices): a snapshot
  class is found by its name, so it is no anonymous or local class; each serializer has a snapshot class of its own; a
  snapshot holds no Java objects. Flink's own classes are exempt: some of them deviate.
* `DeclaredSerializer`, `parse_declaration`: a user declares a snapshot class without a plug-in by a text `CLASS=LAYOUT`
  or `CLASS(BODY)=LAYOUT`. `codecs.layout` reads LAYOUT; BODY is a list of words: a number (`i8`, `i16`, `i32`, `i64`,
  `f32`, `f64`, `bool`), `utf`, `bytes(N)`, `snapshot` (a nested serializer snapshot) or `composite` (the layout of
  `CompositeTypeSerializerSnapshot` without outer data). Without BODY the body is empty, or ends where that can be
  proven.
* `read_settled`: a serializer snapshot has no length: only its class knows where its body ends. Where the end of the
  header around it is known, an end is proven when the rest of the header parses completely, ends exactly at that
  offset, and no other end does so too. The one presumption is that a body does not hold the key of a serializer as
  state meta infos write it (`VALUE_SERIALIZER`, then version 2). Source of the grammar:
  `StateMetaInfoSnapshotReadersWriters`, `TypeSerializerSnapshot`.
* `read_head`, `read_composite_header`, `read_optional_map` and their writers: frames around serializer snapshots:
  outer, versioned, composite header, linked optional map. Only the linked optional maps of POJO and Kryo snapshots have
  frames with a length. Source: `TypeSerializerSnapshotSerializationUtil`,
  `TypeSerializerSnapshot.writeVersionedSnapshot`, `CompositeTypeSerializerSnapshot`,
  `NestedSerializersSnapshotDelegate`, `LinkedOptionalMapSerializer`.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypedDict, TypeVar

import numpy as np

from state_pipelines.binary.data_views import Reader
from state_pipelines.errors import (
    FormatError,
    UnknownSerializerError,
    UnsupportedError,
    UnsupportedVersionError,
    UsageError,
    Where,
    older_than_promised,
    unsupported_version,
)
from state_pipelines.serializers.tree import Serializer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from state_pipelines.binary.data_views import Writer
    from state_pipelines.serializers.tree import StateMetaInfo

_FLINK = "org.apache.flink."
JAVA_STREAM = bytes.fromhex("aced0005")
"""First bytes of a stream of `ObjectOutputStream`."""

_ANONYMOUS = re.compile(r"\$\$Lambda|\$\d")
_PICKLE = re.compile(rb"\x80[\x02-\x05].*\.", re.DOTALL)

_snapshot_classes: dict[str, str] = {}


def is_flinks(snapshot_class: str) -> bool:
    """Return whether a class is one of Flink's own, by its package."""
    return snapshot_class.startswith(_FLINK)


def check_name(snapshot_class: str) -> None:
    """Check that Java can find a snapshot class by this name.

    Raises:
        UsageError: not a binary class name, or the name of an anonymous or local class or of a lambda.
    """
    if "/" in snapshot_class or not all(each.replace("$", "_").isidentifier() for each in snapshot_class.split(".")):
        raise UsageError(
            f"{snapshot_class!r} is not the binary name of a Java class",
            hint="Write it as Class.getName() gives it: com.acme.MoneySerializer$MoneySerializerSnapshot",
        )
    if _ANONYMOUS.search(snapshot_class):
        raise UsageError(
            f"{snapshot_class} is an anonymous or local class: Flink makes snapshots by name, with a public "
            "constructor without arguments, and the name changes with the next class that is written",
            hint="Give the snapshot a public static class of its own",
        )


def claim_serializer(serializer: str, snapshot_classes: tuple[str, ...]) -> None:
    """Record the snapshot class of a serializer class; no two serializer classes share a snapshot class.

    Raises:
        UsageError: `snapshot_classes` has several names, the serializer has another snapshot class already, or the
            snapshot class belongs to another serializer.
    """
    if len(snapshot_classes) != 1:
        raise UsageError(
            f"{serializer} has one snapshot class, not {len(snapshot_classes)}",
            hint="Register each snapshot class by itself; if one replaces another, register their comparison with "
            "compatibility.register_successor",
        )
    (snapshot_class,) = snapshot_classes
    taken = _snapshot_classes.get(serializer, snapshot_class)
    if taken != snapshot_class:
        raise UsageError(f"{serializer} has the snapshot class {taken} already, and can have no second one")
    owner = next((each for each, name in _snapshot_classes.items() if name == snapshot_class), serializer)
    if owner != serializer:
        raise UsageError(
            f"{snapshot_class} is the snapshot class of {owner}: {serializer} cannot share it",
            hint="Give each serializer a snapshot class of its own, which can then change on its own",
        )
    _snapshot_classes[serializer] = snapshot_class


def check_node(snapshot_class: str, version: int, node: object) -> None:
    """Check the result of a registered reader, so that it is written and compared as the snapshot that was read.

    Raises:
        UsageError: it is no node, has another snapshot class or version, or does not compare by value.
    """
    if not isinstance(node, Serializer):
        raise UsageError(
            f"the reader of version {version} of {snapshot_class} returned {type(node).__name__}, which is no node",
            hint="Return a frozen dataclass that is a subclass of state_pipelines.serializers.tree.Serializer",
        )
    if is_flinks(snapshot_class):
        return
    if (node.snapshot_class, node.snapshot_version) != (snapshot_class, version):
        raise UsageError(
            f"the reader of version {version} of {snapshot_class} made a node of version {node.snapshot_version} of "
            f"{node.snapshot_class}",
            hint="Build the node with **head.marks",
        )
    parameters = getattr(type(node), "__dataclass_params__", None)
    if parameters is None or not (parameters.frozen and parameters.eq):
        raise UsageError(
            f"{type(node).__name__}, the node of {snapshot_class}, is no frozen dataclass; snapshots compare by value",
            hint="Decorate it with @dataclass(frozen=True, kw_only=True)",
        )


def check_body(snapshot_class: str, body: bytes) -> None:
    """Check that a snapshot body is not a serialized object of Java or Python.

    Raises:
        UsageError: the body is a stream of Java objects or a pickle.
    """
    if is_flinks(snapshot_class):
        return
    kind = "Java objects" if body.startswith(JAVA_STREAM) else "pickled objects" if _PICKLE.fullmatch(body) else ""
    if kind:
        raise UsageError(
            f"the snapshot {snapshot_class} consists of {kind}, which no other version of the code can be sure to read",
            hint="Write names and values (utf, i32, nested snapshots). If the Java class does write objects, register "
            "its reader with java_objects=True",
        )


EXAMPLE = "com.acme.MoneySerializer$Snap=Struct(currency: utf, cents: i64)"

SNAPSHOT = "snapshot"
COMPOSITE = "composite"

_WIDTHS = {"bool": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "f32": 4, "f64": 8}
_BYTES = re.compile(r"bytes\((\d{1,9})\)")
_DECLARATION = re.compile(r"\s*([^=()\s]+)\s*(?:\((.*?)\)\s*)?=\s*(.+?)\s*", re.DOTALL)


@dataclass(frozen=True)
class DeclaredSerializer:
    """A user's declaration of a serializer that has no reader.

    Attributes:
        snapshot_class: binary name of the `TypeSerializerSnapshot` class.
        layout: text of the layout of the data.
        body: words for the values in the body of the snapshot, in their order; None if not declared.
    """

    snapshot_class: str
    layout: str
    body: tuple[str, ...] | None = None


def parse_declaration(text: str) -> DeclaredSerializer:
    """Parse a declaration; its LAYOUT is not checked here.

    Raises:
        UsageError: the text is not `CLASS=LAYOUT` or `CLASS(BODY)=LAYOUT`, or BODY has an unknown word.
    """
    match = _DECLARATION.fullmatch(_unnest(text))
    if match is None:
        raise UsageError(f"{text!r} does not have the form CLASS=LAYOUT", hint=f"Such as {EXAMPLE}")
    name, body, _ = match.groups()
    layout = text[match.start(3) : match.end(3)]
    check_name(name)
    words = None
    if body is not None:
        inner = text[match.start(2) : match.end(2)]
        words = tuple(word for each in inner.split(",") if (word := each.strip()))
        for word in words:
            if word not in _WIDTHS and word not in ("utf", SNAPSHOT, COMPOSITE) and not _BYTES.fullmatch(word):
                raise UsageError(
                    f"{word!r} in the body of {name} is not known",
                    hint=f"The words are {', '.join(_WIDTHS)}, utf, bytes(N), {SNAPSHOT} and {COMPOSITE}",
                )
    return DeclaredSerializer(name, layout, words)


def _unnest(text: str) -> str:
    """Return `text` with `<` and `>` for nested parentheses, so that a pattern finds the outermost pair."""
    depth, changed = 0, []
    for each in text:
        depth -= each == ")"
        changed.append(("<" if each == "(" else ">" if each == ")" else each) if depth > 0 else each)
        depth += each == "("
    return "".join(changed)


def skip_word(reader: Reader, word: str) -> None:
    """Skip a value in the body of a snapshot."""
    sized = _BYTES.fullmatch(word)
    if sized:
        reader.skip(int(sized[1]))
    elif word == "utf":
        reader.utf()
    else:
        reader.skip(_WIDTHS[word])


Parsed = TypeVar("Parsed")

MAX_WORK = 8 << 20
"""Bytes that all parses of one header may read before the search ends; a parse counts `_WORK_OF_PARSE` bytes more."""

_WORK_OF_PARSE = 512

MAX_UNKNOWN = 200
"""Maximum number of unknown bodies in one header; with more, their ends are not looked for."""

NESTED, SERIALIZERS, STATES = "nested", "serializers", "states"
"""Lists in a header: nested snapshots, the serializers of a state, states."""

_KINDS = {kind.to_bytes(4, "big") for kind in range(5)}
_OUTER_VERSION = bytes.fromhex("00000002")
_CLASS_NAME = re.compile(rb"[\w$.\x80-\xff]+")

ADAPTER_VERSION = 0x7A53C4F0
"""Version that `TypeSerializerConfigSnapshot` writes: its body begins with the Java-serialized serializer."""


class OpenBodyError(UnknownSerializerError):
    """The parse of a header stopped at a snapshot without a reader, because the end of its body is not known.

    Attributes:
        start: first offset at which the body can end.
        node: the snapshot as far as it is known; its `raw` is None.
        stage: `Reading.stage` where the parse stopped.
        infos: the states that were read, and the known fields of the current state (see `read_state_meta_infos`).
        left: number of states after the current one.
        header: the beginning of the header that was read; None if it is not known.
    """

    start: int = 0
    node: Serializer
    stage: tuple[object, ...] = ()
    infos: tuple[StateMetaInfo, ...] = ()
    left: int = 0
    header: object = None


@dataclass
class Reading:
    """State of one parse of a header, under assumptions about the ends of unknown bodies.

    Attributes:
        declared: declarations of the user, by snapshot class.
        ends: assumed ends of unknown bodies, in the order of the file.
        used: number of `ends` that were used so far.
        whole: start -> end of the snapshots that are read as one `Opaque` node.
        snapshots: start, end and node of each snapshot that `read_snapshot` has read.
        done: snapshots that an earlier parse has read under the same ends, by start: the end, the node, and the number
            of ends that were used up to there.
        stage: kind, start and number of remaining items of each list around the current offset, outermost first.
        skipped: number of bytes in snapshots that were taken from `done`.
        parsed: number of all other bytes that were read, set when the parse has ended.
        empty_bodies: assume empty bodies for declared classes whose declaration has no body.
    """

    declared: dict[str, DeclaredSerializer]
    ends: tuple[int, ...] = ()
    used: int = 0
    whole: dict[int, int] = field(default_factory=dict)
    snapshots: list[tuple[int, int, Serializer]] = field(default_factory=list)
    done: dict[int, tuple[int, Serializer, int]] = field(default_factory=dict)
    stage: list[object] = field(default_factory=list)
    skipped: int = 0
    parsed: int = 0
    empty_bodies: bool = False

    @property
    def finished(self) -> dict[int, tuple[int, Serializer, int]]:
        """The snapshots that were read, as `done` of a parse that assumes the same ends and further ones."""
        counts = {start: sum(each <= stop for each in self.ends) for start, stop, _ in self.snapshots}
        return {start: (stop, node, counts[start]) for start, stop, node in self.snapshots}


@dataclass
class _Work:
    """Budget of a search for the ends of bodies, shared with nested searches in frames inside the header.

    Attributes:
        left: bytes that may still be read.
    """

    left: int


_reading: ContextVar[Reading | None] = ContextVar("header being read", default=None)
_work: ContextVar[_Work | None] = ContextVar("work of the search for ends", default=None)


def current_reading() -> Reading | None:
    """Return what is known of the header that `read_settled` reads, or None if it does not run.

    Without it a snapshot class that is not known is an error; with it the search looks for the end of its bytes.
    """
    return _reading.get()


@contextmanager
def reading(state: Reading | None) -> Iterator[None]:
    """Set the state of the current parse during a `with` block; with None, an unknown snapshot class is an error."""
    token = _reading.set(state)
    try:
        yield
    finally:
        _reading.reset(token)


@contextmanager
def left(kind: str, start: int, number: int) -> Iterator[None]:
    """Record in `Reading.stage`, during a `with` block, how many items of a list are left.

    Args:
        kind: kind of the list: nested snapshots, serializers or states.
        start: offset of the list.
        number: number of items from the current one on.
    """
    state = _reading.get()
    if state is None:
        yield
        return
    state.stage.append((kind, start, number))
    try:
        yield
    finally:
        state.stage.pop()


def take_body(reader: Reader, head: Head, node: Serializer, error: UnsupportedError) -> bytes:
    """Take the body of a snapshot that has no reader, up to its assumed end.

    Args:
        reader: positioned at the body.
        head: class name and version of the snapshot.
        node: the snapshot without its body.
        error: the error that says why the snapshot has no reader.

    Raises:
        OpenBodyError: no end is assumed for this body.
        FormatError: the body cannot end at the assumed end.
        UnsupportedError: this is `error`, outside of `read_settled`.
    """
    state = _reading.get()
    if state is None:
        raise error
    start = reader.position
    first = start
    if head.version & 0xFFFFFFFF == ADAPTER_VERSION:
        # Every body of such a class begins in the same way, because `TypeSerializerConfigSnapshot.writeSnapshot` is
        # final: i32 version and i32 length, then a Java object.
        reader.i32()
        reader.skip(reader.count())
        first = reader.position
    if state.used == len(state.ends):
        raised = OpenBodyError(error.what, where=error.where, hint=error.hint)
        raised.start, raised.node, raised.stage = first, node, tuple(state.stage)
        raise raised
    end = state.ends[state.used]
    state.used += 1
    if end < first:
        raise reader.error("the body of a snapshot ends before its Java object does", end)
    reader.position = start
    return reader.take(end - start)


def read_settled(
    parse: Callable[[Reader], Parsed],
    data: bytes,
    name: str | None,
    *,
    start: int = 0,
    end: int | None,
    declared: Sequence[DeclaredSerializer] = (),
) -> tuple[Parsed, int]:
    """Parse a header, and find the ends of snapshot bodies that have no reader.

    Args:
        parse: reads the whole header.
        data: bytes that contain the header.
        name: file name for errors.
        start: offset of the header.
        end: end of the header; None if it is not known, so that no end of a body can be proven.
        declared: the user's declarations of snapshot classes.

    Returns:
        The result of `parse`, and the end of the header. Unknown snapshots are `Opaque` nodes. A snapshot that could be
        split into nested snapshots in several ways becomes one `Opaque` node.

    Raises:
        OpenBodyError: the end of an unknown body cannot be proven.
        FormatError: `parse` cannot read the bytes.
    """
    classes = {each.snapshot_class: each for each in declared}

    def attempt(state: Reading) -> tuple[Parsed, int]:
        reader = Reader(data, name, start, len(data) if end is None else end)
        try:
            with reading(state):
                parsed = parse(reader)
        finally:
            state.parsed = reader.position - start - state.skipped
        if state.used and end is not None:
            # If no end was assumed, the caller checks the bytes after the header.
            reader.expect_end("the header")
        return parsed, reader.position

    try:
        return attempt(Reading(classes, empty_bodies=True))
    except OpenBodyError as error:
        if end is None:
            raise
        first = error
    except FormatError:
        if end is None or not classes:
            raise
        # Either a declared class has a body that is not empty, or the bytes are damaged. The second attempt does not
        # assume empty bodies, and stops at the first body that needs a search.
        try:
            return attempt(Reading(classes))
        except OpenBodyError as error:
            first = error
    # The size of the header is added, so that the budget always suffices to read it once.
    work = _work.get() or _Work(MAX_WORK + end)
    search = _Search(data, end, lambda ends, done: Reading(classes, ends, done=done), attempt, work)
    token = _work.set(work)
    try:
        search.explore((), first, {})
    except _GivenUpError as stopped:
        first.what += stopped.what
    finally:
        _work.reset(token)
    if search.solution is None:
        raise first
    if not search.whole:
        return search.solution[0]
    ends = search.solution[1].ends
    kept = tuple(each for each in ends if not any(begin < each <= stop for begin, stop in search.whole.items()))
    return attempt(Reading(classes, kept, whole=search.whole))


class _Search(Generic[Parsed]):
    """Depth-first search for the ends of unknown bodies, in the order of the file.

    Args:
        data: bytes that contain the header.
        end: end of the header.
        assume: makes the state of a parse, given assumed ends and the snapshots that are read already.
        attempt: parses the header with such a state.
        work: budget of this search and of the searches that contain it.

    Attributes:
        solution: result and state of the first parse that succeeded; None if none did, or if solutions differ.
        whole: start -> end of snapshots that other solutions split differently into nested snapshots.
    """

    def __init__(
        self,
        data: bytes,
        end: int,
        assume: Callable[[tuple[int, ...], dict[int, tuple[int, Serializer, int]]], Reading],
        attempt: Callable[[Reading], Parsed],
        work: _Work,
    ) -> None:
        self._candidates = Candidates(data, end)
        self._assume = assume
        self._attempt = attempt
        self._work = work
        work.left -= end
        # First possible end of a body and the remaining lists after it -> the solution from there on, None if there is
        # none. Assumed ends before that body do not matter.
        self._known: dict[tuple[object, ...], Reading | None] = {}
        self.solution: tuple[Parsed, Reading] | None = None
        self.whole: dict[int, int] = {}

    def explore(
        self, ends: tuple[int, ...], error: OpenBodyError, done: dict[int, tuple[int, Serializer, int]]
    ) -> Reading | None:
        """Try all possible ends of the body at which a parse stopped; return the state of a solution, or None.

        Args:
            ends: assumed ends of the bodies before this one.
            error: the error that stopped the parse.
            done: snapshots that were read before this body.

        Raises:
            _GivenUpError: the header can be split in several ways, or too many ends would have to be tried.
        """
        if len(ends) >= MAX_UNKNOWN:
            raise _GivenUpError
        found: Reading | None = None
        for candidate in self._candidates.find(error.start, error.stage):
            if self._work.left <= 0:
                self.solution = None
                raise _GivenUpError
            state = self._assume((*ends, candidate), done)
            try:
                parsed = self._parse(state)
            except OpenBodyError as deeper:
                key = (deeper.start, *deeper.stage)
                if key not in self._known:
                    self._known[key] = self.explore(state.ends, deeper, state.finished)
                    found = found or self._known[key]
                elif (solution := self._known[key]) is not None:
                    self._compare(state, solution)
                    found = found or solution
            except (FormatError, UnsupportedError):
                continue
            else:
                if self.solution is None:
                    self.solution = parsed, state
                self._compare(state, state)
                found = found or state
        return found

    def _parse(self, state: Reading) -> Parsed:
        try:
            return self._attempt(state)
        finally:
            self._work.left -= state.parsed + _WORK_OF_PARSE

    def _compare(self, state: Reading, solution: Reading) -> None:
        """Compare another solution with the first one: all must have snapshots with the same bounds.

        Where the two have different nodes for the same bytes, these are recorded in `whole`: they are read as one
        `Opaque`.

        Args:
            state: parse of the beginning of the other solution.
            solution: an earlier parse whose end is that of the other solution, so that it need not be parsed again.

        Raises:
            _GivenUpError: snapshots of the two have different bounds.
        """
        assert self.solution is not None
        first = self.solution[1]
        read = len(state.snapshots)
        every = (*state.snapshots, *solution.snapshots[read:])
        if [each[:2] for each in every] != [each[:2] for each in first.snapshots]:
            self.solution = None
            raise _GivenUpError("; several ends of its body are possible")
        self.whole |= {one[0]: one[1] for one, other in zip(every, first.snapshots, strict=True) if one != other}
        if read < len(every) and state.ends != solution.ends[: len(state.ends)]:
            self.whole[every[read][0]] = every[read][1]


class _GivenUpError(Exception):
    """The search ended without proving where the bodies end."""

    def __init__(self, what: str = "") -> None:
        super().__init__(what)
        self.what = what


class Candidates:
    """Offsets at which a body may end.

    Depending on the lists around a body, it is followed by the class of the next nested snapshot, the key of the next
    serializer, or the name and kind of the next state. If it is the last item of all lists, a number of states or the
    end of the header follows.

    Args:
        data: bytes that contain the header.
        end: end of the header.
    """

    def __init__(self, data: bytes, end: int) -> None:
        texts = _find_texts(data, end)
        words = {offset: data[offset + 2 : stop] for offset, stop in texts.items()}
        names = [offset for offset, stop in texts.items() if data[stop : stop + 4] in _KINDS]
        self._after = {
            NESTED: [offset for offset, word in words.items() if _CLASS_NAME.fullmatch(word)],
            SERIALIZERS: [offset for offset, word in words.items() if word.endswith(b"_SERIALIZER")],
            STATES: names,
        }
        # Offsets of the keys of serializers that are followed by an outer version. No body contains such bytes, so a
        # body ends before the next of these offsets.
        self._keys = [offset for offset in self._after[SERIALIZERS] if data[texts[offset] :][:4] == _OUTER_VERSION]
        counted = [offset - 2 for offset in names if offset > 1 and data[offset - 2] < 0x80]
        empty = [offset for offset in (end - 2,) if data[offset:end] == b"\0\0"]
        self._last = sorted({*counted, *empty, end})

    def find(self, start: int, stage: tuple[object, ...]) -> list[int]:
        """Return the candidates from `start` on, ascending.

        Args:
            start: first offset at which the body can end.
            stage: kind, offset and number of items left of each list around the body, outermost first.
        """
        kind = next((each[0] for each in reversed(stage) if isinstance(each, tuple) and each[2] > 1), None)
        found = self._last if kind is None else self._after[kind]
        key = bisect_left(self._keys, start)
        bound = self._keys[key] if key < len(self._keys) else self._last[-1]
        return found[bisect_left(found, start) : bisect_right(found, bound)]


def _find_texts(data: bytes, end: int) -> dict[int, int]:
    """Return offset -> end of everything that may be a text: a u16 length, then bytes without control characters."""
    if end < 3:
        return {}
    raw = np.frombuffer(data, np.uint8, end)
    control = np.concatenate([[0], np.cumsum((raw < 0x20) | (raw == 0x7F))])
    sizes = (raw[:-1].astype(np.int64) << 8) | raw[1:]
    starts = np.arange(2, end + 1)
    fits = np.flatnonzero((sizes > 0) & (starts + sizes <= end))
    stops = (starts + sizes)[fits]
    is_text = control[stops] == control[starts[fits]]
    return dict(zip(fits[is_text].tolist(), stops[is_text].tolist(), strict=True))


CLASSES_FILE = Path(__file__).with_name("flink_classes.tsv")
"""The table: in its first lines the releases, then a class and the releases that have it in each line."""

Release = tuple[int, int]
"""Major and minor number of a release."""

_VERSION = re.compile(r"(\d+)\.(\d+)\.\d+")


def list_releases() -> tuple[Release, ...]:
    """Return the releases of Flink that the table covers, in their order."""
    return _read_table()[0]


def find_releases(name: str) -> tuple[Release, ...]:
    """Return the releases of Flink whose distribution has a class, according to the table; empty if none has it."""
    releases, classes = _read_table()
    return tuple(releases[index] for index in classes.get(name, ()))


@cache
def _read_table() -> tuple[tuple[Release, ...], dict[str, tuple[int, ...]]]:
    head, *lines = CLASSES_FILE.read_text().splitlines()
    releases = tuple((int(major), int(minor)) for major, minor in _VERSION.findall(head))
    return releases, {name: _parse_ranges(ranges) for name, _, ranges in (each.partition("\t") for each in lines)}


def _parse_ranges(text: str) -> tuple[int, ...]:
    ranges = (each.partition("-") for each in text.split(","))
    return tuple(index for start, _, end in ranges for index in range(int(start), int(end or start) + 1))


OUTER_VERSION = 2
COMPOSITE_MAGIC = 911108
NESTED_MAGIC = 1333245
NESTED_VERSION = 1
LAST_LEGACY_COMPOSITE = 2
CURRENT_COMPOSITE = 3
OPTIONAL_MAP_MAGIC = 0x000004F2C69A3D70

# Least size of a nested snapshot: length of the class name, the class name, the version.
SMALLEST_SNAPSHOT = 6
# Least size of an entry of a linked optional map: length of the key name (2 bytes) and two flags.
SMALLEST_ENTRY = 4


class Marks(TypedDict):
    """Class name and versions of a snapshot, as keyword arguments of every node."""

    snapshot_class: str
    snapshot_version: int


class CompositeMarks(Marks):
    """`Marks` of a composite node: also the version of its outer data."""

    outer_version: int


@dataclass(frozen=True)
class Head:
    """Class name and version, which precede the body of a snapshot.

    Attributes:
        snapshot_class: binary name of the snapshot class.
        version: version that the class wrote.
        file: name of the file, for errors.
        offset: offset of the class name.
    """

    snapshot_class: str
    version: int
    file: str | None = None
    offset: int | None = None

    @property
    def marks(self) -> Marks:
        """Class and version as keyword arguments of a node."""
        return {"snapshot_class": self.snapshot_class, "snapshot_version": self.version}

    def composite_marks(self, outer_version: int) -> CompositeMarks:
        """Return class and both versions as keyword arguments of a composite node."""
        return {**self.marks, "outer_version": outer_version}

    def expect(self, *versions: int) -> None:
        """Check that the version of the snapshot class is one of `versions`.

        Raises:
            UnsupportedVersionError: the version is another one.
        """
        if self.version not in versions:
            known = ", ".join(map(str, versions))
            raise UnsupportedVersionError(
                f"version {self.version} of {self.snapshot_class} is not supported (known: {known})",
                where=Where(file=self.file, offset=self.offset),
                hint="Take a savepoint with a Flink release from 1.8 to 2.x and use that",
            )


def read_outer_version(reader: Reader) -> None:
    """Read the outer version, which precedes the serializer snapshots of state meta infos and key serializers.

    Raises:
        UnsupportedVersionError: the version is 1 (config snapshots of releases before 1.7), or a later one than known.
        FormatError: the number is no version.
    """
    start = reader.position
    version = reader.i32()
    if version == 1:
        raise older_than_promised("serializer stored as a config snapshot", Where(file=reader.name, offset=start))
    if version != OUTER_VERSION:
        raise unsupported_version(
            "a serializer snapshot", version, OUTER_VERSION, Where(file=reader.name, offset=start)
        )


def write_outer_version(writer: Writer) -> None:
    """Write the outer version as `read_outer_version` reads it."""
    writer.i32(OUTER_VERSION)


def read_head(reader: Reader) -> Head:
    """Read class name and version of a versioned snapshot."""
    offset = reader.position
    return Head(reader.utf(), reader.i32(), reader.name, offset)


def write_head(writer: Writer, snapshot_class: str, version: int) -> None:
    """Write class name and version as `read_head` reads them."""
    writer.utf(snapshot_class)
    writer.i32(version)


def read_composite_header(reader: Reader, head: Head) -> int:
    """Read magic and version of the outer data of a composite snapshot.

    Snapshots of version 2 and less have no such header; their outer data follow the layout of the snapshot version.

    Returns:
        The version of the outer data.

    Raises:
        FormatError: wrong magic number.
        UnsupportedVersionError: a composite version that no known release writes.
    """
    head.expect(*range(CURRENT_COMPOSITE + 1))
    if head.version <= LAST_LEGACY_COMPOSITE:
        return head.version
    _expect_magic(reader, COMPOSITE_MAGIC, head.snapshot_class)
    return reader.i32()


def write_composite_header(writer: Writer, version: int, outer_version: int) -> None:
    """Write magic and version of the outer data as `read_composite_header` reads them."""
    if version > LAST_LEGACY_COMPOSITE:
        writer.i32(COMPOSITE_MAGIC)
        writer.i32(outer_version)


def read_nested_count(reader: Reader) -> int:
    """Read the head of a list of nested snapshots and return how many follow.

    Raises:
        UnsupportedVersionError: a later version than known.
        FormatError: wrong magic number, a number that is no version, or a count that cannot fit.
    """
    _expect_magic(reader, NESTED_MAGIC, "nested serializers")
    start = reader.position
    version = reader.i32()
    if version != NESTED_VERSION:
        where = Where(file=reader.name, offset=start)
        raise unsupported_version("a list of nested serializers", version, NESTED_VERSION, where)
    return reader.count(SMALLEST_SNAPSHOT)


def write_nested_count(writer: Writer, count: int) -> None:
    """Write the head of a list of nested snapshots as `read_nested_count` reads it."""
    writer.i32(NESTED_MAGIC)
    writer.i32(NESTED_VERSION)
    writer.i32(count)


def read_optional_map(reader: Reader) -> list[tuple[str, Reader | None, Reader | None]]:
    """Read a linked optional map: entries of name, key frame and value frame. Either frame may be absent.

    Frames are returned as readers over the same bytes, so that errors name offsets in the file. The caller must read
    them to their end.

    Raises:
        FormatError: wrong magic number, or a frame outside the data.
    """
    start = reader.position
    magic = reader.i64()
    if magic != OPTIONAL_MAP_MAGIC:
        raise reader.error(f"a linked optional map starts with {OPTIONAL_MAP_MAGIC:#018x}, not {magic:#018x}", start)
    count = reader.count(SMALLEST_ENTRY)
    return [(reader.utf(), _read_frame(reader), _read_frame(reader)) for _ in range(count)]


def write_optional_map(writer: Writer, entries: Iterable[tuple[str, bytes | None, bytes | None]]) -> None:
    """Write a linked optional map as `read_optional_map` reads it."""
    rows = list(entries)
    writer.i64(OPTIONAL_MAP_MAGIC)
    writer.i32(len(rows))
    for name, key, value in rows:
        writer.utf(name)
        _write_frame(writer, key)
        _write_frame(writer, value)


def _read_frame(reader: Reader) -> Reader | None:
    if not reader.bool():
        return None
    size = reader.i32()
    start = reader.position
    reader.skip(size)
    return Reader(reader.data, reader.name, start, start + size)


def _write_frame(writer: Writer, frame: bytes | None) -> None:
    writer.bool(frame is not None)
    if frame is not None:
        writer.bytes32(frame)


def _expect_magic(reader: Reader, magic: int, what: str) -> None:
    start = reader.position
    found = reader.i32()
    if found != magic:
        raise reader.error(f"{what}: magic number {magic:#010x} expected, {found & 0xFFFFFFFF:#010x} found", start)
