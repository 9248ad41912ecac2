"""Kernel columns of a layout while they are declared, and the choice of the fields to decode."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_pipelines.codecs.kernels.buffers import ColumnKind
from state_pipelines.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_NESTING = 64

Wanted = frozenset[str] | None
"""Dotted paths of the fields to decode, such as `address.zip`; None is everything."""


@dataclass
class KernelColumns:
    """The kernel columns declared for a layout.

    Attributes:
        kinds: the kernel columns.
        depth: current nesting depth.
    """

    kinds: list[ColumnKind] = field(default_factory=list)
    depth: int = 0

    def column(self, width: int, *, nullable: bool, nested: bool, wanted: bool, data: bool = False) -> int:
        """Declare a kernel column and return its index; -1 unless `wanted`."""
        if not wanted:
            return -1
        self.kinds.append(ColumnKind(width, data=data, nullable=nullable, nested=nested))
        return len(self.kinds) - 1

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Count one nesting level; raise UnsupportedError beyond `MAX_NESTING`."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise UnsupportedError(f"values are nested more than {MAX_NESTING} levels deep")
        try:
            yield
        finally:
            self.depth -= 1


def check_wanted(wanted: Wanted, names: set[str]) -> None:
    """Raise UsageError unless every wanted path begins with one of the names."""
    for path in wanted or ():
        if path.split(".")[0] not in names:
            raise UsageError(f"there is no field {path}", hint=f"the fields are {', '.join(sorted(names))}")


def below(wanted: Wanted, name: str) -> Wanted:
    """Return the wanted paths below field `name`."""
    if wanted is None or name in wanted:
        return None
    return frozenset(path[len(name) + 1 :] for path in wanted if path.startswith(name + "."))
