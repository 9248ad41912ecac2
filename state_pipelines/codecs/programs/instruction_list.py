"""Instructions of a program while they are emitted, with constants and field paths."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_pipelines.codecs.kernels import opcodes as op

if TYPE_CHECKING:
    from state_pipelines.codecs.programs.array_builders import ArrayBuilder


@dataclass
class InstructionList:
    """The instructions emitted for a layout.

    Attributes:
        rows: the instructions.
        pool: constant bytes.
        paths: field path per instruction, for errors.
        path: field path of the current node.
    """

    rows: list[list[int]] = field(default_factory=list)
    pool: bytearray = field(default_factory=bytearray)
    paths: list[str] = field(default_factory=list)
    path: list[str] = field(default_factory=lambda: ["value"])

    def add(self, code: int, column: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> int:
        """Append an instruction and return its index."""
        self.rows.append([code, column, a, b, c, d])
        self.paths.append("".join(self.path))
        return len(self.rows) - 1

    def add_null(self, builder: ArrayBuilder) -> None:
        """Append instructions that write a null to every column of a builder."""
        for column in builder.level_columns():
            if column >= 0:
                self.add(op.NULL, column, int(column == builder.main))

    def constant(self, raw: bytes) -> int:
        """Add bytes to the pool and return their offset."""
        self.pool += raw
        return len(self.pool) - len(raw)

    def otherwise(self, row: int, argument: int, builder: ArrayBuilder) -> None:
        """Append nulls for `builder` as the jump target in `argument` of `row`; the code before jumps over them."""
        jump = self.add(op.JUMP, -1)
        self.rows[row][argument] = len(self.rows)
        self.add_null(builder)
        self.rows[jump][2] = len(self.rows)
