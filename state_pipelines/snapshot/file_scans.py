"""Scans of the files of an operator's keyed state: how many run at a time, and which key groups they read."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from state_pipelines.errors import UsageError, Where
from state_pipelines.keyed.hashing.value_hashes import find_key_group
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.reading import count_scans_ahead, scan_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np
    import numpy.typing as npt

    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.snapshot.operator_files import OperatorFiles
    from state_pipelines.storage import Location

Item = TypeVar("Item")
Result = TypeVar("Result")


def scan_files(
    operator: OperatorFiles,
    items: Iterable[Item],
    scan: Callable[[Item], Iterator[Result]],
    most: int | None = None,
) -> Iterator[tuple[Item, Iterator[Result]]]:
    """Scan files of keyed state, or parts of them of `most` bytes; see `storage.reading.scan_ahead`."""
    mean = _find_mean_size(operator)
    return scan_ahead(items, scan, operator.snapshot.location.directory, mean if most is None else min(most, mean))


def count_scans(operator: OperatorFiles, target: Location | None = None) -> int:
    """Return how many scans of files one process had better run at a time, since they wait for the storage.

    Args:
        operator: the operator.
        target: directory to which the files are written; None where they are only read.
    """
    if all(map(is_local, (operator.snapshot.location.directory, *([] if target is None else [target])))):
        return 1
    return 1 + count_scans_ahead(_find_mean_size(operator))


def _find_mean_size(operator: OperatorFiles) -> int:
    return operator.keyed_size // max(1, len(operator.keyed_files))


def require_key_groups(operator: OperatorFiles, key_groups: KeyGroupRange) -> None:
    """Refuse a range that begins after the last key group of an operator.

    Raises:
        UsageError: it does; says which key groups there are.
    """
    if operator.max_parallelism > 0 and key_groups.start >= operator.max_parallelism:
        text = f"{key_groups.start}-{key_groups.start + key_groups.number - 1}"
        raise UsageError(
            f"there are no key groups {text}",
            where=Where(operator=operator.label),
            hint=f"The operator has the key groups 0-{operator.max_parallelism - 1}",
        )


def narrow_key_groups(
    operator: OperatorFiles, key: npt.NDArray[np.uint8] | None, key_groups: KeyGroupRange | None = None
) -> KeyGroupRange | None:
    """Narrow a range of key groups to that of a key, so that no other is read.

    Args:
        operator: the operator.
        key: u8, the key as its serializer writes it; None for all keys.
        key_groups: range that is asked for; None for all key groups.

    Returns:
        The range, empty when the key is in another key group; `key_groups` where the hash of the key is not known.
    """
    if key is None or not operator.keyed_files:
        return key_groups
    serializer, layouts = operator.keyed_files[0][1].header.key_serializer, operator.snapshot.layout_context
    found = find_key_group(serializer, layouts, key, operator.max_parallelism)
    if found is None:
        return key_groups
    return found if key_groups is None else found.intersect(key_groups)
