"""Splits of the records of one state for tasks, inside large key groups too.

Where a key must stay whole with its states (`KeyedFile.split`), a part is some whole key groups. The records of one
state alone may be cut anywhere, so that a key group with most of the records does not become one task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.keyed.canonical import CanonicalFile
from state_pipelines.keyed.combined import CombinedFile
from state_pipelines.keyed.heap import HeapFile
from state_pipelines.keyed.rocksdb import RocksFile
from state_pipelines.keyed.sections import select_sections

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from state_pipelines.keyed.files import KeyedFile, RecordContext
    from state_pipelines.metadata.key_groups import KeyGroupRange

_TASKS = 16
"""A key group that holds less than this part of a state keeps no one waiting."""

_SKEW = 4
"""Nor does one that has less than so many times the mean of all key groups."""


def split_records(
    file: KeyedFile,
    state_id: int,
    size: int,
    least: int,
    context: RecordContext,
    key_groups: KeyGroupRange | None = None,
) -> Iterator[tuple[KeyedFile, int]]:
    """Split the records of a state into parts of about `size` bytes of file.

    Key groups of more than `least` bytes are cut inside, where the format allows it: canonical, heap native, RocksDB.
    Other key groups come as `KeyedFile.split` gives them; so do all of a changelog and of raw keyed timers, and those
    of a heap file whose layouts only the scalar codec reads.

    Args:
        file: the file of a subtask.
        state_id: position of the state in its header.
        size: bytes of file per part.
        least: see above; at least `size`, see `choose_least`.
        context: of the operator.
        key_groups: only these.

    Yields:
        (part, position of the state in its header). `scan` of one part after the other gives the records of the state
        in the order of the file, each once.

    Raises:
        FormatError: a large key group is not what the format says.
    """
    match file:
        case CanonicalFile() | HeapFile() | RocksFile():
            for part in file.split_records(state_id, size, least, context, key_groups):
                yield part, state_id
        case CombinedFile():
            first, holder = file.find_holder(state_id)
            groups = file.key_groups if key_groups is None else file.key_groups.intersect(key_groups)
            yield from split_records(holder, state_id - first, size, least, context, groups)
        case _:
            for whole in file.split(size, context, key_groups):
                yield whole, state_id


def choose_least(
    files: Iterable[tuple[KeyedFile, int]], size: int, context: RecordContext, key_groups: KeyGroupRange | None = None
) -> int:
    """How large a key group is at least that is worth cutting, by the bytes of all key groups of a state.

    To find where to cut, the key group is read once more. So it has to be larger than two parts, and either hold more
    than a 16th of everything or be four times as large as the mean.

    Args:
        files: those of all subtasks, with the position of the state in their headers.
        size: bytes of file per part.
        context: of the operator.
        key_groups: only these.
    """
    total = sum(_measure(file, state_id, context, key_groups) for file, state_id in files)
    number = context.max_parallelism if key_groups is None else key_groups.number
    return max(2 * size, total // max(_TASKS, number // _SKEW))


def _measure(file: KeyedFile, state_id: int, context: RecordContext, key_groups: KeyGroupRange | None) -> int:
    """Bytes of file, of all states or, where that is known, of the wanted one; 0 for what is not cut."""
    match file:
        case CanonicalFile(sections=sections) | HeapFile(sections=sections):
            return sum(each.size for each in select_sections(sections, key_groups))
        case RocksFile(key_groups=own):
            groups = own if key_groups is None else own.intersect(key_groups)
            sizes = file.estimate_key_groups(context.prefix, [file.families[state_id]])
            return int(sizes[groups.start : groups.end + 1].sum()) if groups.number else 0
        case CombinedFile():
            first, holder = file.find_holder(state_id)
            return _measure(holder, state_id - first, context, key_groups)
        case _:
            return 0
