"""Layouts compiled for the kernels: instructions, kernel columns, and the way between those and Arrow arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs import opcodes as op
from state_pipelines.codecs.emitting import Compiler
from state_pipelines.codecs.sizes import smallest_size as smallest_size
from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from state_pipelines.codecs.buffers import ColumnKind
    from state_pipelines.codecs.declaring import Wanted
    from state_pipelines.codecs.parts import (
        Part,
    )


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled layout.

    Attributes:
        instructions: i32[n, 6], see `opcodes`.
        pool: constant bytes.
        kinds: the kernel columns.
        part: the way between kernel columns and the Arrow array.
        paths: field path per instruction, such as `value.tags[].name`, for errors.
    """

    instructions: npt.NDArray[np.int32]
    pool: npt.NDArray[np.uint8]
    kinds: tuple[ColumnKind, ...]
    part: Part
    paths: tuple[str, ...]

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the values."""
        return self.part.type


@lru_cache(maxsize=512)
def compile_layout(layout: lay.Layout, wanted: Wanted = None) -> Program:
    """Compile `layout`; with `wanted`, fields that nobody asked for are skipped (decoding only).

    Raises:
        UnsupportedError: some part of the layout has no columnar form (`Dynamic`).
        UsageError: `wanted` names a field that the layout does not have, or nothing at all.
    """
    if wanted is not None and not wanted:
        raise UsageError("no field is wanted", hint="name at least one, or leave the choice out for all of them")
    compiler = Compiler()
    part = compiler.declare(layout, nullable=False, nested=False, wanted=wanted)
    compiler.emit(layout, part)
    compiler.add(op.END)
    return Program(
        instructions=np.array(compiler.rows, np.int32).reshape(-1, op.ARGUMENTS),
        pool=np.frombuffer(bytes(compiler.pool) + b"\0", np.uint8),
        kinds=tuple(compiler.kinds),
        part=part,
        paths=tuple(compiler.paths),
    )


def arrow_type(layout: lay.Layout) -> pa.DataType:
    """Arrow type of the values of `layout`.

    Raises:
        UnsupportedError: the layout has no columnar form.
    """
    return compile_layout(layout).type
