"""The index of a table in memory: where its data blocks are, and which keys they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class BlockIndex:
    """Offsets of the data blocks of a table.

    A separator is not below any key of its block; it is below every key of the next block, or, unless `has_user_keys`,
    not above any.

    Attributes:
        keys: u8, holds the separators.
        key_starts: i64[b].
        key_ends: i64[b].
        offsets: i64[b] positions of the blocks in the file, ascending.
        sizes: i64[b] without trailers.
        has_user_keys: versions of one key never lie in two blocks.
    """

    keys: npt.NDArray[np.uint8]
    key_starts: npt.NDArray[np.int64]
    key_ends: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    has_user_keys: bool

    def __len__(self) -> int:
        return len(self.offsets)

    def separator(self, block: int) -> bytes:
        """The user key of a block's separator."""
        return self.keys[self.key_starts[block] : self.key_ends[block]].tobytes()
