"""Writing the cells of binary rows, arrays and maps; the mirror of `cells`.

Blocks grow at their end: bit set and slots first, all zero, then the variable-length data, padded to 8 bytes.
"""

from __future__ import annotations

from state_pipelines.binary.compiled import copy, load_i32, load_i64, load_u8, njit, store_8, store_32, store_64
from state_pipelines.codecs.kernels import opcodes as op


@njit(cache=True, inline="never")
def fill_zero(target, size):  # type: ignore[no-untyped-def]
    """Write `size` zero bytes."""
    for i in range(size):
        store_8(target + i, 0)


@njit(cache=True, inline="never")
def wide_size(source):  # type: ignore[no-untyped-def]
    """Return the size of a little-endian number of 16 bytes as `BigInteger.toByteArray` writes it."""
    size = 16
    sign = 255 if load_u8(source + 15) >= 128 else 0
    while size > 1 and load_u8(source + size - 1) == sign and (load_u8(source + size - 2) >= 128) == (sign == 255):
        size -= 1
    return size


@njit(cache=True, inline="never")
def store_wide(target, source, size):  # type: ignore[no-untyped-def]
    """Write the lower `size` bytes of a little-endian number big-endian."""
    for i in range(size):
        store_8(target + i, load_u8(source + size - 1 - i))


@njit(cache=True, inline="never")
def missing(columns, column):  # type: ignore[no-untyped-def]
    """Return whether the current value is null."""
    validity = columns[op.VALIDITY, column]
    return validity != 0 and load_u8(validity + columns[op.COUNT, column]) == 0


@njit(cache=True, inline="never")
def write_cell(code, program, pc, columns, blocks, depth, out, limit):  # type: ignore[no-untyped-def]
    """Run one instruction on the block on top of `blocks`, which ends at `out`; 16 bytes there are free.

    Returns:
        (status, next instruction, depth of the stack, end of the block).
    """
    top = depth - 1
    base = blocks[top, op.BASE]
    slot = blocks[top, op.SLOT]
    column = program[pc, 1]
    if code == op.ITEM:
        number = blocks[top, op.AT]
        if missing(columns, column):
            at = base + 4 + (number >> 3)
            store_8(at, load_u8(at) | 1 << (number & 7))
            return op.OK, program[pc, 3], depth, out
        blocks[top, op.SLOT] = base + blocks[top, op.HEADER] + number * program[pc, 2]
        return op.OK, pc + 1, depth, out
    if code == op.NEXT_ITEM:
        blocks[top, op.AT] += 1
        if blocks[top, op.AT] < blocks[top, op.ITEM_COUNT]:
            return op.OK, program[pc, 2], depth, out
        return op.OK, pc + 1, depth, out
    if code == op.ROW:
        size = program[pc, 3]
        if out + size + 16 > limit:
            return op.FULL, pc, depth, out
        fill_zero(out, size)
        if column >= 0:
            store_8(out, load_u8(columns[op.VALUES, column] + columns[op.COUNT, column]))
            columns[op.COUNT, column] += 1
        return op.OK, pc + 1, depth, out + size
    if code == op.ITEMS:
        role = program[pc, 4]
        if role == op.ROLE_VALUES:
            size = blocks[top - 1, op.ITEM_COUNT]
        else:
            if missing(columns, column):
                return op.NULL_VALUE, pc, depth, out
            cursor = columns[op.COUNT, column]
            offsets = columns[op.VALUES, column]
            size = load_i32(offsets + 4 * (cursor + 1)) - load_i32(offsets + 4 * cursor)
            columns[op.COUNT, column] = cursor + 1
            if role == op.ROLE_KEYS:
                blocks[top - 1, op.ITEM_COUNT] = size
        header = 4 + (size + 31) // 32 * 4
        total = (header + size * program[pc, 2] + 7) // 8 * 8
        if out + total + 16 > limit:
            return op.FULL, pc, depth, out
        fill_zero(out, total)
        store_32(out, size)
        blocks[top, op.AT] = 0
        blocks[top, op.ITEM_COUNT] = size
        blocks[top, op.HEADER] = header
        return op.OK, pc + 1 if size else program[pc, 3], depth, out + total
    if code == op.OPEN or code == op.KEYS:
        if depth >= op.MAX_DEPTH:
            return op.TOO_DEEP, pc, depth, out
        if code == op.KEYS:
            store_32(out, 0)
            out += 4
        blocks[depth, op.BASE] = out
        return op.OK, pc + 1, depth + 1, out
    if code == op.ITEM_VALUES:
        store_32(base - 4, out - base)
        blocks[top, op.BASE] = out
        return op.OK, pc + 1, depth, out
    if code == op.MAP_END:
        return op.OK, pc + 1, depth - 1, out
    if code == op.CLOSE:
        outer = blocks[top - 1, op.BASE]
        size = out - base
        while (out - outer) & 7:
            store_8(out, 0)
            out += 1
        store_64(blocks[top - 1, op.SLOT], (base - outer) << 32 | size)
        return op.OK, pc + 1, depth - 1, out
    if missing(columns, column):
        return op.NULL_VALUE, pc, depth, out
    cursor = columns[op.COUNT, column]
    columns[op.COUNT, column] = cursor + 1
    values = columns[op.VALUES, column]
    if code == op.CELL_BYTES:
        start = load_i32(values + 4 * cursor)
        size = load_i32(values + 4 * (cursor + 1)) - start
        source = columns[op.DATA, column] + start
        if program[pc, 2] and size <= 7:
            copy(slot, source, size)
            store_8(slot + 7, 0x80 | size)
            return op.OK, pc + 1, depth, out
        if out + size + 24 > limit:
            return op.FULL, pc, depth, out
        store_64(slot, (out - base) << 32 | size)
        copy(out, source, size)
        out += size
        while (out - base) & 7:
            store_8(out, 0)
            out += 1
        return op.OK, pc + 1, depth, out
    if code == op.CELL_DECIMAL:
        # Always 16 bytes, so that it can be updated in place.
        source = values + 16 * cursor
        size = wide_size(source)
        fill_zero(out, 16)
        store_wide(out, source, size)
        store_64(slot, (out - base) << 32 | size)
        return op.OK, pc + 1, depth, out + 16
    if code == op.CELL_TIME:
        nanos = program[pc, 2]
        at = columns[op.COUNT, nanos]
        columns[op.COUNT, nanos] = at + 1
        store_64(out, load_i64(values + 8 * cursor))
        store_64(slot, (out - base) << 32 | load_i32(columns[op.VALUES, nanos] + 4 * at))
        return op.OK, pc + 1, depth, out + 8
    return op.BAD_FLAG, pc, depth, out
