"""Decoding kernel of the cells of binary rows, arrays and maps (table runtime).

A cell is the slot of a field or an element of an array. Instructions work on a stack of blocks (see `opcodes`); every
offset that a block holds is checked against its end. The most frequent instructions are in `decoding` itself.
"""

from __future__ import annotations

from state_pipelines.binary.compiled import (
    copy,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    njit,
    store_8,
    store_32,
    store_64,
)
from state_pipelines.codecs.kernels import opcodes as op


# Inlined: the commonest cells are read by it, and a call for each takes longer than the reading.
@njit(cache=True, inline="always")
def append_raw(columns, column, source, width):  # type: ignore[no-untyped-def]
    """Append a value of `width` bytes unchanged. False when the column is full."""
    count = columns[op.COUNT, column]
    if count >= columns[op.CAPACITY, column]:
        return False
    target = columns[op.VALUES, column] + width * count
    if width == 8:
        store_64(target, load_i64(source))
    elif width == 4:
        store_32(target, load_i32(source))
    else:
        copy(target, source, width)
    if columns[op.VALIDITY, column]:
        store_8(columns[op.VALIDITY, column] + count, 1)
    columns[op.COUNT, column] = count + 1
    return True


@njit(cache=True, inline="never")
def append_wide(columns, column, source, size):  # type: ignore[no-untyped-def]
    """Append big-endian two's complement of at most 16 bytes as a little-endian number. False when full."""
    count = columns[op.COUNT, column]
    if count >= columns[op.CAPACITY, column]:
        return False
    target = columns[op.VALUES, column] + 16 * count
    sign = 255 if load_u8(source) >= 128 else 0
    for i in range(size):
        store_8(target + i, load_u8(source + size - 1 - i))
    for i in range(size, 16):
        store_8(target + i, sign)
    if columns[op.VALIDITY, column]:
        store_8(columns[op.VALIDITY, column] + count, 1)
    columns[op.COUNT, column] = count + 1
    return True


@njit(cache=True, inline="never")
def append_list(columns, column, size):  # type: ignore[no-untyped-def]
    """Append a list of `size` elements: OK, FULL or BAD_LENGTH."""
    count = columns[op.COUNT, column]
    if count >= columns[op.CAPACITY, column]:
        return op.FULL
    values = columns[op.VALUES, column]
    stop = load_i32(values + 4 * count) + size
    if stop > op.MAX_OFFSET:
        return op.BAD_LENGTH
    store_32(values + 4 * (count + 1), stop)
    if columns[op.VALIDITY, column]:
        store_8(columns[op.VALIDITY, column] + count, 1)
    columns[op.COUNT, column] = count + 1
    return op.OK


@njit(cache=True, inline="never")
def read_cell(code, program, pc, columns, blocks, depth):  # type: ignore[no-untyped-def]
    """Run one instruction on the block on top of `blocks`.

    Returns:
        (status, next instruction or the column that is full, depth of the stack).
    """
    top = depth - 1
    base = blocks[top, op.BASE]
    stop = blocks[top, op.STOP]
    column = program[pc, 1]
    if code == op.ROW:
        if stop - base < program[pc, 3]:
            return op.TRUNCATED, pc, depth
        kind = load_u8(base)
        if kind > 3:
            return op.BAD_FLAG, pc, depth
        if not program[pc, 4] and kind:
            return op.BAD_KIND, pc, depth
        if column >= 0 and not append_raw(columns, column, base, 1):
            return op.FULL, column, depth
        return op.OK, pc + 1, depth
    if code == op.ITEMS:
        if stop - base < 4:
            return op.TRUNCATED, pc, depth
        size = load_i32(base)
        header = 4 + (size + 31) // 32 * 4
        if size < 0 or header + size * program[pc, 2] > stop - base:
            return op.BAD_LENGTH, pc, depth
        role = program[pc, 4]
        if role == op.ROLE_KEYS:
            blocks[top - 1, op.ITEM_COUNT] = size
        elif role == op.ROLE_VALUES and blocks[top - 1, op.ITEM_COUNT] != size:
            return op.BAD_LENGTH, pc, depth
        if column >= 0 and role != op.ROLE_VALUES:
            status = append_list(columns, column, size)
            if status:
                return status, column if status == op.FULL else pc, depth
        blocks[top, op.AT] = 0
        blocks[top, op.ITEM_COUNT] = size
        blocks[top, op.HEADER] = header
        return op.OK, pc + 1 if size else program[pc, 3], depth
    if code == op.KEYS:
        if stop - base < 4:
            return op.TRUNCATED, pc, depth
        size = load_i32(base)
        if size < 0 or size > stop - base - 4:
            return op.BAD_LENGTH, pc, depth
        if depth >= op.MAX_DEPTH:
            return op.TOO_DEEP, pc, depth
        blocks[depth, op.BASE] = base + 4
        blocks[depth, op.STOP] = base + 4 + size
        blocks[depth, op.LEFT] = size
        return op.OK, pc + 1, depth + 1
    if code == op.ITEM_VALUES:
        blocks[top, op.BASE] = stop
        blocks[top, op.STOP] = blocks[top - 1, op.STOP]
        blocks[top, op.LEFT] = blocks[top, op.STOP] - stop
        return op.OK, pc + 1, depth
    if code == op.CLOSE or code == op.MAP_END:
        return op.OK, pc + 1, depth - 1
    slot = blocks[top, op.SLOT]
    start = load_u32(slot + 4)
    size = load_u32(slot)
    if code == op.CELL_TIME:
        if start + 8 > stop - base:
            return op.BAD_LENGTH, pc, depth
        blocks[top, op.LEFT] -= 8
        if blocks[top, op.LEFT] < 0:
            return op.OVERLAP, pc, depth
        nanos = program[pc, 2]
        if columns[op.COUNT, nanos] >= columns[op.CAPACITY, nanos]:
            return op.FULL, nanos, depth
        if not append_raw(columns, column, base + start, 8):
            return op.FULL, column, depth
        append_raw(columns, nanos, slot, 4)
        return op.OK, pc + 1, depth
    if start + size > stop - base:
        return op.BAD_LENGTH, pc, depth
    blocks[top, op.LEFT] -= size
    if blocks[top, op.LEFT] < 0:
        return op.OVERLAP, pc, depth
    if code == op.CELL_DECIMAL:
        if size == 0 or size > 16:
            return op.BAD_LENGTH, pc, depth
        if not append_wide(columns, column, base + start, size):
            return op.FULL, column, depth
        return op.OK, pc + 1, depth
    if code == op.OPEN:
        if depth >= op.MAX_DEPTH:
            return op.TOO_DEEP, pc, depth
        blocks[depth, op.BASE] = base + start
        blocks[depth, op.STOP] = base + start + size
        blocks[depth, op.LEFT] = size
        return op.OK, pc + 1, depth + 1
    return op.BAD_FLAG, pc, depth
