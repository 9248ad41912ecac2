"""Offsets of elements that handles of operator state name in a file, and whether they name all of them.

Flink writes the elements of a subtask back to back after the header, and names each of them in one handle
(`DefaultOperatorStateBackendSnapshotStrategy`). So does `rescale`, but for broadcast state, of which every subtask has
the same: further handles may name it in a file whose list elements another handle names.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.snappy_frames import STREAM_ID
from state_pipelines.errors import EDITED_METADATA, FormatError, Where
from state_pipelines.metadata.operator_handles import OperatorStateMode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.metadata.operator_handles import OperatorStateMetaInfo
    from state_pipelines.operatorstate.header import OperatorHeader
    from state_pipelines.serializers.state_meta_info import StateMetaInfo

Offsets = npt.NDArray[np.int64]
Spans = tuple[Offsets, Offsets]


def join_offsets(states: Sequence[OperatorStateMetaInfo], name: str) -> dict[str, tuple[int, ...]]:
    """Offsets that all handles over a stream name, by state.

    Args:
        states: of the handles.
        name: of the stream, for errors.

    Raises:
        FormatError: elements of a list state are named twice, or a broadcast state at two offsets.
    """
    found: dict[str, tuple[int, ...]] = {}
    for state in states:
        known = found.get(state.state_name, ())
        if known and state.offsets and (state.mode is not OperatorStateMode.BROADCAST or known != state.offsets):
            raise FormatError(
                "two handles, or one twice, name elements of this state in this file",
                where=Where(file=name, offset=state.offsets[0], state=state.state_name),
                hint=EDITED_METADATA,
            )
        found[state.state_name] = known or state.offsets
    return found


def order_offsets(
    handle: Sequence[OperatorStateMetaInfo],
    shared: Sequence[OperatorStateMetaInfo],
    header: OperatorHeader,
    bounds: tuple[int, int],
    name: str,
) -> dict[str, Offsets]:
    """Check what handles say of a file, and return the offsets of each state that they name.

    The states are in the order of the header, so that of two states at one position the first is empty.

    Args:
        handle: states of one handle.
        shared: of all handles over the file, where it has several.
        header: of the file.
        bounds: where the header ends, and the file.
        name: of the file.

    Raises:
        FormatError: the file does not have a state, or as another kind; an offset is outside; elements are named twice;
            bytes after the header belong to no element; or the handle leaves out a broadcast state.
    """
    if shared and not header.broadcasts:
        # Only copies of broadcast state are in the file of another subtask.
        what = "two handles name this file, which has no broadcast state"
        raise FormatError(what, where=Where(file=name), hint=EDITED_METADATA)
    for state in (*handle, *shared):
        _check_state(state, header.by_name.get(state.state_name), bounds, name)
    own = {state.state_name for state in handle}
    for info in header.broadcasts:
        if info.name not in own:
            # A subtask has all its broadcast state in one file.
            what = "the file has a broadcast state that its handle does not name"
            raise FormatError(what, where=Where(file=name, state=info.name), hint=EDITED_METADATA)
    offsets = join_offsets(shared or handle, name)
    ordered = {state: np.array(offsets[state], np.int64) for state in header.by_name if state in offsets}
    start = bounds[0] + len(STREAM_ID) * header.compressed
    first = min((int(each.min()) for each in ordered.values() if len(each)), default=bounds[1])
    if first > start and not header.raw:
        raise FormatError(
            f"bytes {start} to {first}, after the header, belong to no element that a handle names",
            where=Where(file=name, offset=start),
            hint=EDITED_METADATA,
        )
    return ordered


def select_own(ordered: Mapping[str, Spans], handle: Sequence[OperatorStateMetaInfo]) -> dict[str, Spans]:
    """Return the spans of the elements that one handle names, out of those of all handles over its file."""
    none = np.zeros(0, np.int64)
    named = {state.state_name: state.offsets for state in handle}
    return {state: span if named[state] else (none, none) for state, span in ordered.items() if state in named}


def _check_state(state: OperatorStateMetaInfo, info: StateMetaInfo | None, bounds: tuple[int, int], name: str) -> None:
    where = Where(file=name, state=state.state_name)
    if info is None:
        raise FormatError("the handle names a state that its file does not have", where=where)
    if info.distribution_mode not in (None, state.mode.name):
        what = f"the handle says that the state is {state.mode.name}, but the file says {info.distribution_mode}"
        raise FormatError(what, where=where, hint=EDITED_METADATA)
    if state.mode is OperatorStateMode.BROADCAST and len(state.offsets) != 1:
        raise FormatError(f"a broadcast state has one offset, not {len(state.offsets)}", where=where)
    check_inside(state, *bounds, name)
    if any(after < before for before, after in pairwise(state.offsets)):
        raise FormatError("elements are not in the order of the file", where=where, hint=EDITED_METADATA)


def check_inside(state: OperatorStateMetaInfo, start: int, end: int, name: str) -> None:
    """Check that elements begin at bytes `start` to `end` of a file.

    Raises:
        FormatError: an offset is outside.
    """
    for offset in state.offsets:
        if not start <= offset <= end:
            raise FormatError(
                f"an offset of {offset} is outside the payload, bytes {start} to {end}",
                where=Where(file=name, offset=offset, state=state.state_name),
            )


def bound_elements(offsets: Mapping[str, Offsets], size: int) -> dict[str, Spans]:
    """Return the spans from each offset to the next one of any state, or to the end; so no two of them overlap."""
    if not offsets:
        return {}
    starts = np.concatenate(list(offsets.values()))
    order = np.argsort(starts, kind="stable")
    ends = np.empty_like(starts)
    ends[order] = np.append(starts[order][1:], size)
    stops = np.cumsum([len(each) for each in offsets.values()])[:-1]
    return dict(zip(offsets, zip(offsets.values(), np.split(ends, stops), strict=True), strict=True))
