"""Ends of snapshot bodies whose class has no reader.

A serializer snapshot has no length: only its class knows where its body ends. Where the end of the header around it is
known, an end is proven when the rest of the header parses completely, ends exactly at that offset, and no other end
does so too (`read_settled`). The one presumption is that a body does not hold the key of a serializer as state meta
infos write it (`VALUE_SERIALIZER`, then version 2).
Source of the grammar: `StateMetaInfoSnapshotReadersWriters`, `TypeSerializerSnapshot`.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from state_pipelines.binary.data_views import Reader
from state_pipelines.errors import FormatError, UnknownSerializerError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from state_pipelines.serializers.declared_snapshots import DeclaredSerializer
    from state_pipelines.serializers.registered_states import StateMetaInfo
    from state_pipelines.serializers.snapshot_frames import Head
    from state_pipelines.serializers.tree import Serializer

Parsed = TypeVar("Parsed")

MAX_WORK = 8 << 20
"""Bytes that all parses of one header may read until no further ends are tried; each parse counts as some more."""

_WORK_OF_PARSE = 512

MAX_UNKNOWN = 200
"""Unknown bodies in one header up to which ends are looked for."""

NESTED, SERIALIZERS, STATES = "nested", "serializers", "states"
"""Lists in a header: nested snapshots, the serializers of a state, states."""

_KINDS = {kind.to_bytes(4, "big") for kind in range(5)}
_OUTER_VERSION = bytes.fromhex("00000002")
_CLASS_NAME = re.compile(rb"[\w$.\x80-\xff]+")

ADAPTER_VERSION = 0x7A53C4F0
"""Version that `TypeSerializerConfigSnapshot` writes: its body begins with the Java-serialized serializer."""


class OpenBodyError(UnknownSerializerError):
    """The end of the body of a snapshot without reader is not known.

    Attributes:
        start: first offset at which the body can end.
        node: the snapshot as far as it is known; its `raw` is None.
        stage: the remaining reading steps of the header, for comparison.
        infos: the states that were read, and the known fields of the current state (see `read_state_meta_infos`).
        left: number of states after it.
        header: the known beginning of the header; None if nothing is known.
    """

    start: int = 0
    node: Serializer
    stage: tuple[object, ...] = ()
    infos: tuple[StateMetaInfo, ...] = ()
    left: int = 0
    header: object = None


@dataclass
class Reading:
    """The header that is being read.

    Attributes:
        declared: declarations of the user, by snapshot class.
        ends: assumed ends of unknown bodies, in the order of the file.
        used: how many of them were used.
        whole: start and end of snapshots whose inside is not settled.
        snapshots: start, end and node of each snapshot in its outer form that was read.
        done: by start, the end, the node, and how many ends are used then, of snapshots that were read before under the
            same ends.
        stage: numbers of items that are left in the lists around the current offset.
        skipped: bytes of the snapshots that were taken from `done`.
        parsed: all other bytes that were read, once the parse has ended.
        empty_bodies: the bodies of declared classes are empty, unless declared otherwise.
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
        """The snapshots that were read, as `done` of a parse under the same ends and more."""
        counts = {start: sum(each <= stop for each in self.ends) for start, stop, _ in self.snapshots}
        return {start: (stop, node, counts[start]) for start, stop, node in self.snapshots}


@dataclass
class _Work:
    """The work of a search for ends, and of the searches in frames inside of the header.

    Attributes:
        left: bytes that may still be read.
    """

    left: int


_reading: ContextVar[Reading | None] = ContextVar("header being read", default=None)
_work: ContextVar[_Work | None] = ContextVar("work of the search for ends", default=None)


def current_reading() -> Reading | None:
    """Return the header that is being read; None where an unknown snapshot class is an error."""
    return _reading.get()


@contextmanager
def reading(state: Reading | None) -> Iterator[None]:
    """Read with `state`; None: an unknown snapshot class is an error."""
    token = _reading.set(state)
    try:
        yield
    finally:
        _reading.reset(token)


@contextmanager
def left(kind: str, start: int, number: int) -> Iterator[None]:
    """Note that the list of a kind that begins at `start` has `number` items from here on."""
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
        head: of the snapshot.
        node: the snapshot without its body.
        error: why it has no reader.

    Raises:
        OpenBodyError: no end is assumed.
        FormatError: the body cannot end there.
        UnsupportedError: `error`, where no header is being read.
    """
    state = _reading.get()
    if state is None:
        raise error
    start = reader.position
    first = start
    if head.version & 0xFFFFFFFF == ADAPTER_VERSION:
        # `TypeSerializerConfigSnapshot.writeSnapshot` is final: i32 version and i32 length, then a Java object.
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
    """Parse a header, and settle where bodies without reader end.

    Args:
        parse: reads the whole header.
        data: holds the header.
        name: of the file, for errors.
        start: offset of the header.
        end: its end; None when it is not known, so that no unknown body can be settled.
        declared: snapshot classes that the user declares.

    Returns:
        The result of `parse`, and the end of the header. Unknown snapshots are `Opaque` nodes; a snapshot that can be
        split into nested ones in several ways is one `Opaque` node as a whole.

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
            # Without an assumed end, the caller checks what follows the header.
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
        # Either a declared class has a body that is not empty, or bytes are damaged: the search finds out.
        try:
            return attempt(Reading(classes))
        except OpenBodyError as error:
            first = error
    # The header can be read at least once, however long it is.
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
    """Tries ends of unknown bodies, each body before those after it.

    Args:
        data: holds the header.
        end: of the header.
        assume: makes the state of a parse under assumed ends.
        attempt: parses.
        work: of this search and those around it.

    Attributes:
        solution: the first solution; None if there is none, or if solutions differ.
        whole: start and end of the snapshots whose inside other solutions split differently.
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
        # Solutions by the remaining steps after the body; None where there is none.
        self._known: dict[tuple[object, ...], Reading | None] = {}
        self.solution: tuple[Parsed, Reading] | None = None
        self.whole: dict[int, int] = {}

    def explore(
        self, ends: tuple[int, ...], error: OpenBodyError, done: dict[int, tuple[int, Serializer, int]]
    ) -> Reading | None:
        """Try all ends of the body at which a parse under `ends` stopped; a solution, if there is one.

        Args:
            ends: assumed ends of the bodies before it.
            error: the error that stopped the parse.
            done: snapshots that were read before it.

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
        """Note where a solution differs from the first one: it begins as `state` does and ends as `solution`."""
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
    """The search is over without a proof."""

    def __init__(self, what: str = "") -> None:
        super().__init__(what)
        self.what = what


class Candidates:
    """Offsets at which a body may end.

    After a body comes the class of the next nested snapshot, the key of the next serializer, or the name and kind of
    the next state, depending on the lists around it; after the last one a number of states, or the end of the header.

    Args:
        data: holds the header.
        end: of the header.
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
        # The key of a serializer with the version of the outer form: no body holds that, it is the header's own.
        self._keys = [offset for offset in self._after[SERIALIZERS] if data[texts[offset] :][:4] == _OUTER_VERSION]
        counted = [offset - 2 for offset in names if offset > 1 and data[offset - 2] < 0x80]
        empty = [offset for offset in (end - 2,) if data[offset:end] == b"\0\0"]
        self._last = sorted({*counted, *empty, end})

    def find(self, start: int, stage: tuple[object, ...]) -> list[int]:
        """Return the candidates from `start` on, ascending.

        Args:
            start: first offset at which the body can end.
            stage: kind, offset and number of items left of each list around it, outermost first.
        """
        kind = next((each[0] for each in reversed(stage) if isinstance(each, tuple) and each[2] > 1), None)
        found = self._last if kind is None else self._after[kind]
        key = bisect_left(self._keys, start)
        bound = self._keys[key] if key < len(self._keys) else self._last[-1]
        return found[bisect_left(found, start) : bisect_right(found, bound)]


def _find_texts(data: bytes, end: int) -> dict[int, int]:
    """Find everything that may be a text without control characters after its u16 length; ends by offset."""
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
