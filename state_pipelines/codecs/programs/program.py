"""Programs: layouts compiled to kernel instructions, kernel columns and array builders."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.codecs.kernels import opcodes as op
from state_pipelines.codecs.minimal_sizes import smallest_size as smallest_size
from state_pipelines.codecs.programs.instructions import Compiler
from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from state_pipelines.codecs import layout as lay
    from state_pipelines.codecs.kernels.buffers import ColumnKind
    from state_pipelines.codecs.programs.array_builders import ArrayBuilder
    from state_pipelines.codecs.programs.kernel_columns import Wanted


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled layout.

    Attributes:
        instructions: i32[n, 6], see `opcodes`.
        pool: constant bytes.
        kinds: the kernel columns.
        builder: conversion between kernel columns and the Arrow array.
        paths: field path per instruction, such as `value.tags[].name`, for errors.
    """

    instructions: npt.NDArray[np.int32]
    pool: npt.NDArray[np.uint8]
    kinds: tuple[ColumnKind, ...]
    builder: ArrayBuilder
    paths: tuple[str, ...]

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the values."""
        return self.builder.type


@lru_cache(maxsize=512)
def compile_layout(layout: lay.Layout, wanted: Wanted = None) -> Program:
    """Compile `layout`; with `wanted`, all other fields are skipped (decoding only).

    Raises:
        UnsupportedError: a node of the layout has no Arrow type (`Dynamic`).
        UsageError: `wanted` names a field that the layout does not have, or nothing at all.
    """
    if wanted is not None and not wanted:
        raise UsageError("no field is wanted", hint="name at least one, or leave the choice out for all of them")
    compiler = Compiler()
    builder = compiler.declare(layout, nullable=False, nested=False, wanted=wanted)
    compiler.emit(layout, builder)
    compiler.add(op.END)
    return Program(
        instructions=np.array(compiler.rows, np.int32).reshape(-1, op.ARGUMENTS),
        pool=np.frombuffer(bytes(compiler.pool) + b"\0", np.uint8),
        kinds=tuple(compiler.kinds),
        builder=builder,
        paths=tuple(compiler.paths),
    )


def arrow_type(layout: lay.Layout) -> pa.DataType:
    """Arrow type of the values of `layout`.

    Raises:
        UnsupportedError: the layout has no Arrow type.
    """
    return compile_layout(layout).type
