"""Decoding kernel: a compiled layout run over many records, whose values are appended to columns.

`decode` has the most frequent instructions itself. `read_cell` decodes the cells of binary rows, arrays and maps (table
runtime). A cell is the slot of a field or an element of an array. Its instructions work on a stack of blocks (see
`opcodes`); every offset that a block holds is checked against its end.
"""

from __future__ import annotations

import numpy as np

from state_pipelines.binary.compiled import (
    copy,
    load_i32,
    load_i32_big,
    load_i64,
    load_i64_big,
    load_u8,
    load_u16_big,
    load_u32,
    njit,
    store_8,
    store_32,
    store_64,
)
from state_pipelines.codecs.kernels import opcodes as op
from state_pipelines.codecs.kernels.strings import HALF, decode_java_text, decode_text, read_count, skip_text


# Inlined, because it reads the most frequent cells, for which a call takes longer than the reading.
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
    """Append a list of `size` elements, which follow; return the status OK, FULL or BAD_LENGTH."""
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
    """Run one instruction on the current block, the top of the stack `blocks`.

    Returns:
        (status, next instruction, depth of the stack); with the status FULL, the full column instead of an instruction.
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


@njit(cache=True, inline="never")
def append_null(columns, column):  # type: ignore[no-untyped-def]
    """Append a null: zero bits, no bytes, no elements. False when the column is full."""
    count = columns[op.COUNT, column]
    if count >= columns[op.CAPACITY, column]:
        return False
    width = columns[op.WIDTH, column]
    values = columns[op.VALUES, column]
    if width == 8:
        store_64(values + 8 * count, 0)
    elif width == 4:
        store_32(values + 4 * count, 0)
    elif width > 0:
        for i in range(width):
            store_8(values + width * count + i, 0)
    elif width == 0:
        store_32(values + 4 * (count + 1), load_i32(values + 4 * count))
    if columns[op.VALIDITY, column]:
        store_8(columns[op.VALIDITY, column] + count, 0)
    columns[op.COUNT, column] = count + 1
    return True


@njit(cache=True, inline="never")
def append_bytes(columns, column, source, size):  # type: ignore[no-untyped-def]
    """Append `size` bytes at `source` to a variable column. False when the column is full."""
    count = columns[op.COUNT, column]
    used = columns[op.DATA_SIZE, column]
    if count >= columns[op.CAPACITY, column] or used + size > columns[op.DATA_CAPACITY, column]:
        return False
    copy(columns[op.DATA, column] + used, source, size)
    used += size
    columns[op.DATA_SIZE, column] = used
    store_32(columns[op.VALUES, column] + 4 * (count + 1), used)
    if columns[op.VALIDITY, column]:
        store_8(columns[op.VALIDITY, column] + count, 1)
    columns[op.COUNT, column] = count + 1
    return True


@njit(cache=True, inline="never")
def append_integer(columns, column, value):  # type: ignore[no-untyped-def]
    """Append a one-byte two's complement integer to a variable column. False when the column is full."""
    count = columns[op.COUNT, column]
    used = columns[op.DATA_SIZE, column]
    if count >= columns[op.CAPACITY, column] or used + 1 > columns[op.DATA_CAPACITY, column]:
        return False
    store_8(columns[op.DATA, column] + used, value)
    columns[op.DATA_SIZE, column] = used + 1
    store_32(columns[op.VALUES, column] + 4 * (count + 1), used + 1)
    if columns[op.VALIDITY, column]:
        store_8(columns[op.VALIDITY, column] + count, 1)
    columns[op.COUNT, column] = count + 1
    return True


@njit(cache=True, inline="never")
def same_bytes(left, right, size):  # type: ignore[no-untyped-def]
    """Return whether `size` bytes at two addresses are equal."""
    i = 0
    while i < size and load_u8(left + i) == load_u8(right + i):
        i += 1
    return i >= size


@njit(cache=True, nogil=True)
def decode(program, pool, columns, base, starts, ends, exact, stops):  # type: ignore[no-untyped-def]
    """Run `program` over records and append every value to its column.

    Args:
        program: i32[n, 6], see `opcodes`.
        pool: address of constant bytes.
        columns: i64[8, m], see `opcodes`; counts and sizes are updated.
        base: address to which `starts` and `ends` are relative.
        starts: i64[r] first byte of each record; -1: the end of the previous record.
        ends: i64[r] end of the bytes each record may use.
        exact: a record must end where its bytes end.
        stops: i64[r], filled with where each record ended.

    Returns:
        (status, record, position, instruction or column): the error and its location; status 0 on success.
    """
    loops = np.empty((op.MAX_DEPTH, 3), np.int64)
    blocks = np.empty((op.MAX_DEPTH, op.BLOCK_STATE), np.int64)
    frames = np.empty(op.MAX_DEPTH, np.int64)
    masks = np.empty(op.MAX_DEPTH, np.int64)
    marks = np.empty(op.MAX_DEPTH, np.int64)
    position = base
    for record in range(len(starts)):
        if starts[record] >= 0:
            position = base + starts[record]
        end = base + ends[record]
        pc = 0
        depth = 0
        mask_depth = 0
        mark_depth = 0
        block_depth = 0
        frame_depth = 0
        empty = 0
        while True:
            code = program[pc, 0]
            column = program[pc, 1]
            if code == op.FIXED:
                width = program[pc, 2]
                if position + width > end:
                    return op.TRUNCATED, record, position - base, pc
                if column >= 0:
                    count = columns[op.COUNT, column]
                    if count >= columns[op.CAPACITY, column]:
                        return op.FULL, record, position - base, column
                    values = columns[op.VALUES, column]
                    if width == 8:
                        store_64(values + 8 * count, load_i64_big(position))
                    elif width == 4:
                        store_32(values + 4 * count, load_i32_big(position))
                    elif width == 1:
                        store_8(values + count, load_u8(position))
                    else:
                        value = load_u16_big(position)
                        store_8(values + 2 * count, value)
                        store_8(values + 2 * count + 1, value >> 8)
                    if columns[op.VALIDITY, column]:
                        store_8(columns[op.VALIDITY, column] + count, 1)
                    columns[op.COUNT, column] = count + 1
                position += width
                pc += 1
            elif code == op.CELL:
                # The most frequent cells are read here instead of in `read_cell`, since a call takes longer than that.
                at = blocks[block_depth - 1, op.BASE]
                bit = program[pc, 2]
                if load_u8(at + (bit >> 3)) >> (bit & 7) & 1:
                    pc = program[pc, 4]
                else:
                    blocks[block_depth - 1, op.SLOT] = at + program[pc, 3]
                    pc += 1
            elif code == op.CELL_FIXED:
                if not append_raw(columns, column, blocks[block_depth - 1, op.SLOT], program[pc, 2]):
                    return op.FULL, record, position - base, column
                pc += 1
            elif code == op.CELL_BYTES:
                at = blocks[block_depth - 1, op.SLOT]
                mark = load_u8(at + 7)
                if mark >= 0x80 and program[pc, 2]:
                    size = mark & 0x7F
                    if size > 7:
                        return op.BAD_LENGTH, record, at - base, pc
                else:
                    start = blocks[block_depth - 1, op.BASE]
                    size = load_u32(at)
                    at = start + load_u32(at + 4)
                    if at + size > blocks[block_depth - 1, op.STOP]:
                        return op.BAD_LENGTH, record, start - base, pc
                    left = blocks[block_depth - 1, op.LEFT] - size
                    blocks[block_depth - 1, op.LEFT] = left
                    if left < 0:
                        return op.OVERLAP, record, start - base, pc
                if not append_bytes(columns, column, at, size):
                    return op.FULL, record, position - base, column
                pc += 1
            elif code == op.ITEM:
                at = blocks[block_depth - 1, op.BASE]
                index = blocks[block_depth - 1, op.AT]
                if load_u8(at + 4 + (index >> 3)) >> (index & 7) & 1:
                    pc = program[pc, 3]
                else:
                    at += blocks[block_depth - 1, op.HEADER]
                    blocks[block_depth - 1, op.SLOT] = at + index * program[pc, 2]
                    pc += 1
            elif code == op.NEXT_ITEM:
                index = blocks[block_depth - 1, op.AT] + 1
                blocks[block_depth - 1, op.AT] = index
                pc = program[pc, 2] if index < blocks[block_depth - 1, op.ITEM_COUNT] else pc + 1
            elif code >= op.FIRST_CELL:
                status, target, block_depth = read_cell(code, program, pc, columns, blocks, block_depth)
                if status:
                    return status, record, blocks[block_depth - 1, op.BASE] - base, target
                pc = target
            elif code == op.TEXT:
                if position >= end:
                    return op.TRUNCATED, record, position - base, pc
                units = load_u8(position)
                at = position
                position += 1
                if units >= 0x80:
                    status, units, position = read_count(at, end)
                    if status:
                        return status, record, at - base, pc
                if program[pc, 2]:
                    units -= 1
                if units < 0:
                    if column >= 0 and not append_null(columns, column):
                        return op.FULL, record, position - base, column
                    pc += 1
                    continue
                if units > end - position:
                    return op.BAD_LENGTH, record, at - base, pc
                if column < 0:
                    position = skip_text(position, end, units)
                    if position < 0:
                        return op.TRUNCATED, record, at - base, pc
                else:
                    count = columns[op.COUNT, column]
                    used = columns[op.DATA_SIZE, column]
                    if count >= columns[op.CAPACITY, column] or used + 3 * units > columns[op.DATA_CAPACITY, column]:
                        return op.FULL, record, position - base, column
                    position, size = decode_text(position, end, units, columns[op.DATA, column] + used)
                    if size < 0:
                        return op.HALF_TEXT if size == HALF else op.BAD_TEXT, record, at - base, pc
                    used += size
                    columns[op.DATA_SIZE, column] = used
                    store_32(columns[op.VALUES, column] + 4 * (count + 1), used)
                    if columns[op.VALIDITY, column]:
                        store_8(columns[op.VALIDITY, column] + count, 1)
                    columns[op.COUNT, column] = count + 1
                pc += 1
            elif code == op.JAVA_TEXT:
                if position + 2 > end:
                    return op.TRUNCATED, record, position - base, pc
                size = load_u16_big(position)
                if size > end - position - 2:
                    return op.BAD_LENGTH, record, position - base, pc
                if column >= 0:
                    count = columns[op.COUNT, column]
                    used = columns[op.DATA_SIZE, column]
                    if count >= columns[op.CAPACITY, column] or used + size > columns[op.DATA_CAPACITY, column]:
                        return op.FULL, record, position - base, column
                    written = decode_java_text(position + 2, position + 2 + size, columns[op.DATA, column] + used)
                    if written < 0:
                        return op.BAD_TEXT, record, position - base, pc
                    used += written
                    columns[op.DATA_SIZE, column] = used
                    store_32(columns[op.VALUES, column] + 4 * (count + 1), used)
                    if columns[op.VALIDITY, column]:
                        store_8(columns[op.VALIDITY, column] + count, 1)
                    columns[op.COUNT, column] = count + 1
                position += 2 + size
                pc += 1
            elif code == op.FLAG:
                if position >= end:
                    return op.TRUNCATED, record, position - base, pc
                flag = load_u8(position)
                position += 1
                null = flag == 0 if program[pc, 2] == 0 else flag != 0
                if null:
                    padding = program[pc, 3]
                    if padding < 0:
                        position = end
                    elif position + padding > end:
                        return op.TRUNCATED, record, position - base, pc
                    else:
                        position += padding
                    pc = program[pc, 4]
                else:
                    pc += 1
            elif code == op.PRESENT:
                count = columns[op.COUNT, column]
                if count >= columns[op.CAPACITY, column]:
                    return op.FULL, record, position - base, column
                if columns[op.VALIDITY, column]:
                    store_8(columns[op.VALIDITY, column] + count, 1)
                columns[op.COUNT, column] = count + 1
                pc += 1
            elif code == op.NULL:
                if not append_null(columns, column):
                    return op.FULL, record, position - base, column
                pc += 1
            elif code == op.JUMP:
                pc = program[pc, 2]
            elif code == op.END:
                break
            elif code == op.SIZED:
                if position + 4 > end:
                    return op.TRUNCATED, record, position - base, pc
                size = load_i32_big(position)
                if size < 0 or size > end - position - 4:
                    return op.BAD_LENGTH, record, position - base, pc
                position += 4
                if column >= 0 and not append_bytes(columns, column, position, size):
                    return op.FULL, record, position - base, column
                position += size
                pc += 1
            elif code == op.LIST:
                if position + 4 > end:
                    return op.TRUNCATED, record, position - base, pc
                size = load_i32_big(position)
                if size < 0 or size * program[pc, 2] > end - position - 4:
                    return op.BAD_LENGTH, record, position - base, pc
                if program[pc, 2] == 0:
                    empty += size
                    if empty > op.MAX_EMPTY_ITEMS:
                        return op.BAD_LENGTH, record, position - base, pc
                position += 4
                if column >= 0:
                    count = columns[op.COUNT, column]
                    if count >= columns[op.CAPACITY, column]:
                        return op.FULL, record, position - base, column
                    values = columns[op.VALUES, column]
                    stop = load_i32(values + 4 * count) + size
                    if stop > op.MAX_OFFSET:
                        return op.BAD_LENGTH, record, position - base, pc
                    store_32(values + 4 * (count + 1), stop)
                    if columns[op.VALIDITY, column]:
                        store_8(columns[op.VALIDITY, column] + count, 1)
                    columns[op.COUNT, column] = count + 1
                if size == 0:
                    pc = program[pc, 3]
                else:
                    if depth >= op.MAX_DEPTH:
                        return op.TOO_DEEP, record, position - base, pc
                    loops[depth, 0] = size
                    depth += 1
                    pc += 1
            elif code == op.NEXT:
                loops[depth - 1, 0] -= 1
                if loops[depth - 1, 0] > 0:
                    pc = program[pc, 2]
                else:
                    depth -= 1
                    pc += 1
            elif code == op.DELIMITED:
                if depth >= op.MAX_DEPTH:
                    return op.TOO_DEEP, record, position - base, pc
                if column >= 0:
                    count = columns[op.COUNT, column]
                    if count >= columns[op.CAPACITY, column]:
                        return op.FULL, record, position - base, column
                    values = columns[op.VALUES, column]
                    store_32(values + 4 * (count + 1), load_i32(values + 4 * count))
                    if columns[op.VALIDITY, column]:
                        store_8(columns[op.VALIDITY, column] + count, 1)
                    columns[op.COUNT, column] = count + 1
                if position >= end:
                    pc = program[pc, 3]
                else:
                    loops[depth, 0] = 0
                    depth += 1
                    pc += 1
            elif code == op.DELIMITED_NEXT:
                loops[depth - 1, 0] += 1
                if position < end:
                    if program[pc, 3] != op.NO_DELIMITER:
                        if load_u8(position) != program[pc, 3]:
                            return op.LEFT_OVER, record, position - base, pc
                        position += 1
                        if position >= end:
                            return op.TRUNCATED, record, position - base, pc
                    pc = program[pc, 2]
                else:
                    depth -= 1
                    column = program[pc, 4]
                    if column >= 0:
                        count = columns[op.COUNT, column]
                        values = columns[op.VALUES, column]
                        stop = load_i32(values + 4 * count) + loops[depth, 0]
                        if stop > op.MAX_OFFSET:
                            return op.BAD_LENGTH, record, position - base, pc
                        store_32(values + 4 * count, stop)
                    pc += 1
            elif code == op.POJO:
                if position >= end:
                    return op.TRUNCATED, record, position - base, pc
                flag = load_u8(position)
                position += 1
                if flag == 2:
                    pc += 1 + program[pc, 3]
                elif flag == 1:
                    pc = program[pc, 2]
                elif flag == 8 or flag == 4:
                    tag = -1
                    size = 0
                    if flag == 8:
                        if position >= end:
                            return op.TRUNCATED, record, position - base, pc
                        tag = load_u8(position)
                        position += 1
                    else:
                        if position + 2 > end:
                            return op.TRUNCATED, record, position - base, pc
                        size = load_u16_big(position)
                        if position + 2 + size > end:
                            return op.BAD_LENGTH, record, position - base, pc
                        position += 2
                    target = -1
                    for case in range(pc + 1, pc + 1 + program[pc, 3]):
                        if program[case, 2] != tag:
                            continue
                        if flag == 8 or (
                            program[case, 4] == size and same_bytes(pool + program[case, 3], position, size)
                        ):
                            target = program[case, 5]
                            break
                    if target < 0:
                        return op.BAD_SUBCLASS, record, position - base, pc
                    position += size
                    pc = target
                else:
                    return op.BAD_FLAG, record, position - base - 1, pc
            elif code == op.CLASS:
                if column >= 0:
                    count = columns[op.COUNT, column]
                    if count >= columns[op.CAPACITY, column]:
                        return op.FULL, record, position - base, column
                    store_32(columns[op.VALUES, column] + 4 * count, program[pc, 2])
                    if columns[op.VALIDITY, column]:
                        store_8(columns[op.VALIDITY, column] + count, 1)
                    columns[op.COUNT, column] = count + 1
                pc += 1
            elif code == op.MASKED:
                bit = program[pc, 2]
                if load_u8(masks[mask_depth - 1] + (bit >> 3)) & (0x80 >> (bit & 7)):
                    pc = program[pc, 3]
                else:
                    pc += 1
            elif code == op.MASK:
                size = program[pc, 2]
                if position + size > end:
                    return op.TRUNCATED, record, position - base, pc
                if mask_depth >= op.MAX_DEPTH:
                    return op.TOO_DEEP, record, position - base, pc
                if column >= 0:
                    count = columns[op.COUNT, column]
                    if count >= columns[op.CAPACITY, column]:
                        return op.FULL, record, position - base, column
                    first = load_u8(position)
                    store_8(columns[op.VALUES, column] + count, (first >> 7 & 1) | (first >> 5 & 2))
                    if columns[op.VALIDITY, column]:
                        store_8(columns[op.VALIDITY, column] + count, 1)
                    columns[op.COUNT, column] = count + 1
                masks[mask_depth] = position
                mask_depth += 1
                position += size
                pc += 1
            elif code == op.UNMASK:
                mask_depth -= 1
                pc += 1
            elif code == op.CONST:
                size = program[pc, 2]
                if position + size > end:
                    return op.TRUNCATED, record, position - base, pc
                if not same_bytes(position, pool + program[pc, 3], size):
                    return op.BAD_CONSTANT, record, position - base, pc
                position += size
                pc += 1
            elif code == op.BIG_INTEGER or code == op.BIG_DECIMAL:
                if position + 4 > end:
                    return op.TRUNCATED, record, position - base, pc
                size = load_i32_big(position)
                if size < 0 or size - 4 > end - position - 4:
                    return op.BAD_LENGTH, record, position - base, pc
                at = position
                position += 4
                fits = True
                if size == 0:
                    if column >= 0:
                        fits = append_null(columns, column)
                elif size < 4:
                    if column >= 0:
                        fits = append_integer(columns, column, 10 if size == 3 else size - 1)
                elif size == 4:
                    return op.BAD_LENGTH, record, at - base, pc
                else:
                    if column >= 0:
                        fits = append_bytes(columns, column, position, size - 4)
                    position += size - 4
                if not fits:
                    return op.FULL, record, position - base, column
                if code == op.BIG_DECIMAL:
                    scale = program[pc, 2]
                    if size == 0:
                        if scale >= 0 and not append_null(columns, scale):
                            return op.FULL, record, position - base, scale
                    else:
                        if position + 4 > end:
                            return op.TRUNCATED, record, position - base, pc
                        if scale >= 0:
                            count = columns[op.COUNT, scale]
                            if count >= columns[op.CAPACITY, scale]:
                                return op.FULL, record, position - base, scale
                            store_32(columns[op.VALUES, scale] + 4 * count, load_i32_big(position))
                            columns[op.COUNT, scale] = count + 1
                        position += 4
                pc += 1
            elif code == op.CHOICE:
                if position >= end:
                    return op.TRUNCATED, record, position - base, pc
                flag = load_u8(position)
                position += 1
                if column >= 0:
                    count = columns[op.COUNT, column]
                    if count >= columns[op.CAPACITY, column]:
                        return op.FULL, record, position - base, column
                    store_8(columns[op.VALUES, column] + count, 1 if flag else 0)
                    if columns[op.VALIDITY, column]:
                        store_8(columns[op.VALIDITY, column] + count, 1)
                    columns[op.COUNT, column] = count + 1
                pc = pc + 1 if flag else program[pc, 2]
            elif code == op.REST:
                if column >= 0 and not append_bytes(columns, column, position, end - position):
                    return op.FULL, record, position - base, column
                position = end
                pc += 1
            elif code == op.POSITION:
                count = columns[op.COUNT, column]
                if count >= columns[op.CAPACITY, column]:
                    return op.FULL, record, position - base, column
                store_64(columns[op.VALUES, column] + 8 * count, position - base)
                if columns[op.VALIDITY, column]:
                    store_8(columns[op.VALIDITY, column] + count, 1)
                columns[op.COUNT, column] = count + 1
                pc += 1
            elif code == op.BLOCK or code == op.FRAME:
                if position + 4 > end:
                    return op.TRUNCATED, record, position - base, pc
                size = load_i32_big(position)
                if size < 0 or size > end - position - 4:
                    return op.BAD_LENGTH, record, position - base, pc
                position += 4
                if code == op.BLOCK:
                    blocks[0, op.BASE] = position
                    blocks[0, op.STOP] = position + size
                    blocks[0, op.LEFT] = size
                    block_depth = 1
                    position += size
                else:
                    if frame_depth >= op.MAX_DEPTH:
                        return op.TOO_DEEP, record, position - base, pc
                    frames[frame_depth] = end
                    frame_depth += 1
                    end = position + size
                pc += 1
            elif code == op.UNBLOCK:
                block_depth = 0
                pc += 1
            elif code == op.UNFRAME:
                if position != end:
                    return op.LEFT_OVER, record, position - base, pc
                frame_depth -= 1
                end = frames[frame_depth]
                pc += 1
            elif code == op.MARKER:
                if position + 4 > end:
                    return op.TRUNCATED, record, position - base, pc
                index = load_i32_big(position)
                if index != program[pc, 2] and index != program[pc, 4]:
                    return op.BAD_FLAG, record, position - base, pc
                position += 4
                pc = program[pc, 3] if index == program[pc, 2] else pc + 1
            elif code == op.TAG:
                width = program[pc, 2]
                if position + width > end:
                    return op.TRUNCATED, record, position - base, pc
                index = load_u8(position) if width == 1 else load_i32_big(position)
                target = -1
                for case in range(program[pc, 3]):
                    if program[pc + 1 + case, 2] == index:
                        target = case
                        break
                if target < 0:
                    return op.BAD_FLAG, record, position - base, pc
                if column >= 0:
                    count = columns[op.COUNT, column]
                    if count >= columns[op.CAPACITY, column]:
                        return op.FULL, record, position - base, column
                    store_32(columns[op.VALUES, column] + 4 * count, target)
                    columns[op.COUNT, column] = count + 1
                position += width
                pc = program[pc + 1 + target, 5]
            elif code == op.BYTES:
                size = program[pc, 2]
                if position + size > end:
                    return op.TRUNCATED, record, position - base, pc
                if column >= 0 and not append_bytes(columns, column, position, size):
                    return op.FULL, record, position - base, column
                position += size
                pc += 1
            elif code == op.WIDE_DECIMAL:
                if position + 4 > end:
                    return op.TRUNCATED, record, position - base, pc
                size = load_i32_big(position)
                if size <= 0 or size > 16 or size > end - position - 4:
                    return op.BAD_LENGTH, record, position - base, pc
                if column >= 0 and not append_wide(columns, column, position + 4, size):
                    return op.FULL, record, position - base, column
                position += 4 + size
                pc += 1
            elif code == op.BLOCKS or code == op.BLOCKS_NEXT:
                if code == op.BLOCKS:
                    if depth >= op.MAX_DEPTH:
                        return op.TOO_DEEP, record, position - base, pc
                    if column >= 0:
                        status = append_list(columns, column, 0)
                        if status:
                            return status, record, position - base, column if status == op.FULL else pc
                    loops[depth, 0] = 0
                    loops[depth, 1] = 0
                    depth += 1
                else:
                    column = program[pc, 4]
                loops[depth - 1, 0] -= 1
                if loops[depth - 1, 0] > 0:
                    pc = program[pc, 2]
                    continue
                smallest = program[pc, 2] if code == op.BLOCKS else program[pc, 3]
                at = position
                status, size, position = read_count(position, end)
                if status:
                    return status, record, at - base, pc
                if size * smallest > end - position:
                    return op.BAD_LENGTH, record, at - base, pc
                loops[depth - 1, 0] = size
                loops[depth - 1, 1] += size
                if smallest == 0:
                    empty += size
                if loops[depth - 1, 1] > op.MAX_OFFSET or empty > op.MAX_EMPTY_ITEMS:
                    return op.BAD_LENGTH, record, at - base, pc
                if size:
                    pc = pc + 1 if code == op.BLOCKS else program[pc, 2]
                    continue
                depth -= 1
                if column >= 0:
                    values = columns[op.VALUES, column] + 4 * columns[op.COUNT, column]
                    stop = load_i32(values) + loops[depth, 1]
                    if stop > op.MAX_OFFSET:
                        return op.BAD_LENGTH, record, at - base, pc
                    store_32(values, stop)
                pc = program[pc, 3] if code == op.BLOCKS else pc + 1
            elif code == op.MASKED_LIST:
                if position + 4 > end:
                    return op.TRUNCATED, record, position - base, pc
                size = load_i32_big(position)
                mask = (size + 7) // 8 if program[pc, 4] else 0
                smallest = program[pc, 2]
                if size < 0 or mask + size * smallest > end - position - 4:
                    return op.BAD_LENGTH, record, position - base, pc
                if mask == 0 and smallest == 0:
                    empty += size
                    if empty > op.MAX_EMPTY_ITEMS:
                        return op.BAD_LENGTH, record, position - base, pc
                position += 4 + mask
                if column >= 0:
                    status = append_list(columns, column, size)
                    if status:
                        return status, record, position - base, column if status == op.FULL else pc
                if size == 0:
                    pc = program[pc, 3]
                else:
                    if depth >= op.MAX_DEPTH:
                        return op.TOO_DEEP, record, position - base, pc
                    loops[depth, 0] = size
                    loops[depth, 1] = position - mask
                    loops[depth, 2] = -1
                    depth += 1
                    pc += 1
            elif code == op.MASKED_ITEM:
                loops[depth - 1, 2] += 1
                index = loops[depth - 1, 2]
                if load_u8(loops[depth - 1, 1] + (index >> 3)) & (0x80 >> (index & 7)):
                    pc = program[pc, 2]
                else:
                    pc += 1
            elif code == op.MARK:
                if mark_depth >= op.MAX_DEPTH:
                    return op.TOO_DEEP, record, position - base, pc
                marks[mark_depth] = position
                mark_depth += 1
                pc += 1
            elif code == op.LENGTH:
                mark_depth -= 1
                size = position - marks[mark_depth]
                while True:
                    if position >= end:
                        return op.TRUNCATED, record, position - base, pc
                    if load_u8(position) != (size & 0xFF):
                        return op.BAD_LENGTH, record, position - base, pc
                    position += 1
                    size >>= 8
                    if size == 0:
                        break
                pc += 1
            else:
                return op.BAD_FLAG, record, position - base, pc
        if exact and position != end:
            return op.LEFT_OVER, record, position - base, 0
        stops[record] = position - base
    return op.OK, len(starts), position - base, 0
