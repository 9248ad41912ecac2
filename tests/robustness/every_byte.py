"""Every byte of small snapshots, one after the other: one of its bits is flipped, or its file ends before it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import accumulate
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from state_pipelines.errors import StateError
from state_pipelines.metadata import compute_operator_id, read_metadata, write_metadata
from state_pipelines.snapshot.snapshot import Snapshot
from tests.robustness.snapshot_readers import (
    TABLE_ENDS,
    Target,
    find_targets,
    is_keyed,
    is_operator_state,
    open_cut,
    open_damaged,
)
from tests.snapshots import OWN

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.snapshot.state import State
    from tests.snapshots import Case

STRIDE = 7919
"""Attempts that follow each other are this many bytes apart, so that a few of them are spread over all bytes."""

SNAPPY_START = b"\xff\x06\x00\x00sNaPpY"

Rows = dict[tuple[str | None, str], list[str]]
"""Operator and name of a state -> its rows."""


class WrongRowsError(Exception):
    """Rows differ although the format has a checksum of the byte that was flipped, or although the file is cut."""


@dataclass(frozen=True)
class Reading:
    """What was read of a snapshot.

    Attributes:
        rows: of the states that could be read.
        error: of the first state that could not.
    """

    rows: Rows
    error: StateError | None


@dataclass(frozen=True)
class Stream:
    """Bytes that are flipped or cut.

    Attributes:
        content: the sound bytes.
        read: reads the states from such bytes that need them.
        read_cut: reads them from a file that ends where these bytes do; None where the stream is part of `_metadata`.
        checked_from: first byte from which on the format has checksums; as many as there are bytes where it has none.
    """

    content: bytes
    read: Callable[[bytes], Reading]
    read_cut: Callable[[bytes], Reading] | None
    checked_from: int


@dataclass(frozen=True)
class EveryByte:
    """A reader of which one attempt damages one byte; as many attempts as there are bytes reach each byte once.

    Attributes:
        streams: what is damaged.
        cuts: files end before the byte, instead of a flipped bit.
        sound: rows of each stream as it is.
    """

    streams: tuple[Stream, ...]
    cuts: bool = False
    sound: list[Rows] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Bytes of all streams."""
        return sum(len(each.content) for each in self.streams)

    def read_sound(self) -> None:
        """Read the rows of all streams."""
        for stream in self.streams[len(self.sound) :]:
            reading = stream.read(stream.content)
            if reading.error:
                raise reading.error
            self.sound.append(reading.rows)

    def damage(self, seed: int, number: int) -> bool:
        """Flip one bit of a byte, or cut its file, and read all states.

        Returns:
            Whether the rows are other ones than before.

        Raises:
            StateError: A state could not be read.
            WrongRowsError: Rows of a state that was read differ, where the format has a checksum or the file is cut.
        """
        self.read_sound()
        turn, number = divmod(number, self.count)
        at = number * STRIDE % self.count
        ends = list(accumulate(len(each.content) for each in self.streams))
        index = next(index for index, end in enumerate(ends) if at < end)
        stream, sound = self.streams[index], self.sound[index]
        at -= ends[index] - len(stream.content)
        if self.cuts:
            assert stream.read_cut is not None
            reading = stream.read_cut(stream.content[:at])
        else:
            flipped = bytearray(stream.content)
            flipped[at] ^= 1 << (seed + turn + at) % 8
            reading = stream.read(bytes(flipped))
        changed = any(rows != sound.get(name) for name, rows in reading.rows.items())
        changed |= reading.error is None and reading.rows.keys() != sound.keys()
        if changed and (self.cuts or at >= stream.checked_from):
            raise WrongRowsError(f"byte {at} of {len(stream.content)} in stream {index}")
        if reading.error:
            raise reading.error
        return changed


def _read(snapshot: Snapshot, wanted: Callable[[State], bool]) -> Reading:
    rows: Rows = {}
    error = None
    for operator in snapshot.operators:
        survey = operator.survey()
        for failure in survey.failures:
            error = error or failure.error
        for state in filter(wanted, survey.states):
            try:
                rows[operator.name, state.name] = [repr(each.to_pylist()) for each in state.batches()]
            except StateError as failed:
                error = error or failed
    return Reading(rows, error)


def _make_stream(target: Target, wanted: Callable[[State], bool]) -> Stream:
    content = target.content
    checked_from = len(content)
    if content.endswith(TABLE_ENDS):
        checked_from = 0
    elif SNAPPY_START in content:
        checked_from = content.index(SNAPPY_START)

    def is_read(state: State) -> bool:
        return wanted(state) and state.name not in target.others

    def read_cut(cut: bytes) -> Reading:
        with NamedTemporaryFile() as file:
            file.write(cut)
            file.flush()
            return _read(open_cut(target, file.name), is_read)

    return Stream(
        content,
        lambda damaged: _read(open_damaged(target, damaged), is_read),
        read_cut if target.sound.location else None,
        checked_from,
    )


def _make_streams(
    names: tuple[str, ...], uids: tuple[str, ...], wanted: Callable[[State], bool] = is_keyed
) -> EveryByte:
    return EveryByte(tuple(_make_stream(each, wanted) for each in find_targets(_choose(names), wanted, uids)))


def _make_metadata_stream(case: Case, uids: tuple[str, ...]) -> Stream:
    """The `_metadata` of a snapshot, of one small operator only."""
    sound = case.open_told()
    ids = {compute_operator_id(uid) for uid in uids}
    (operator,) = (each for each in sound.metadata.operator_states if each.operator_id in ids)
    content = write_metadata(replace(sound.metadata, operator_states=(operator,)))

    def read(damaged: bytes) -> Reading:
        metadata = read_metadata(damaged, "_metadata")
        snapshot = Snapshot(sound.location, metadata, sound.path_mapping, sound.declarations)
        return _read(snapshot, lambda state: is_keyed(state) or is_operator_state(state))

    return Stream(content, read, read, len(content))


def _make_metadata() -> EveryByte:
    cases = _choose(("heap 2.2", "heap-checkpoint 2.2", "changelog-heap-files 2.2", "rocksdb-incremental 2.2"))
    return EveryByte(tuple(_make_metadata_stream(each, (*_WINDOWS, *_FEW)) for each in cases))


def _choose(names: tuple[str, ...]) -> list[Case]:
    return [case for case in OWN if f"{case.case} {case.version[:3]}" in names]


_WINDOWS = ("tumbling-windows",)
_FEW = ("few-states",)

_FLIPS: dict[str, Callable[[], EveryByte]] = {
    "bytes-metadata": _make_metadata,
    "bytes-canonical": lambda: _make_streams(("heap 1.2", "heap 2.2", "rocksdb 2.2"), _WINDOWS),
    "bytes-canonical-snappy": lambda: _make_streams(
        ("heap-snappy 1.2", "heap-snappy 2.2", "rocksdb-snappy 2.2"), _WINDOWS
    ),
    "bytes-canonical-kinds": lambda: _make_streams(("heap 2.2", "heap-snappy 2.2"), ("state-kinds",)),
    "bytes-heap": lambda: _make_streams(
        ("heap-native 1.2", "heap-native 2.2", "heap-checkpoint 2.2"), (*_WINDOWS, *_FEW)
    ),
    "bytes-heap-snappy": lambda: _make_streams(
        ("heap-native-snappy 1.2", "heap-native-snappy 2.2", "heap-native-snappy 2.3"), _WINDOWS
    ),
    "bytes-rocksdb": lambda: _make_streams(
        ("rocksdb-native 1.2", "rocksdb-native 2.2", "rocksdb-incremental 2.2"), _WINDOWS
    ),
    "bytes-rocksdb-merged": lambda: _make_streams(
        ("rocksdb-file-merging 1.2", "rocksdb-file-merging 2.2", "rocksdb-full 2.2"), _FEW
    ),
    "bytes-forst": lambda: _make_streams(("forst 2.2", "forst 2.3", "forst-async 2.3"), (*_FEW, "async-states")),
    "bytes-changelog": lambda: _make_streams(
        ("changelog-heap-files 2.2", "changelog-rocksdb-files 2.2", "changelog-heap-materialized 2.2"), _FEW
    ),
    "bytes-operator-state": lambda: _make_streams(("heap 2.2",), (), is_operator_state),
}


@cache
def _make_flips(name: str) -> EveryByte:
    return _FLIPS[name]()


def _make_cuts(name: str) -> EveryByte:
    return EveryByte(tuple(each for each in _make_flips(name).streams if each.read_cut is not None), cuts=True)


EVERY_BYTE: dict[str, Callable[[], EveryByte]] = {
    **{name: partial(_make_flips, name) for name in _FLIPS},
    # Those savepoints of the heap with compression hold all state in `_metadata`.
    **{name.replace("bytes", "cuts"): partial(_make_cuts, name) for name in _FLIPS if name != "bytes-heap-snappy"},
}
"""By name: makes the reader."""
