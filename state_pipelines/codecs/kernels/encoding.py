"""Encoding kernel: values taken from columns and written as records; the mirror of `decoding`.

`write_cell` writes the cells of binary rows, arrays and maps; the mirror of `decoding.read_cell`. Blocks grow at their
end: bit set and slots first, all zero, then the variable-length data, padded to 8 bytes.
"""

from __future__ import annotations

import numpy as np

from state_pipelines.binary.compiled import (
    copy,
    load_i32,
    load_i64,
    load_u8,
    njit,
    store_8,
    store_16_big,
    store_32,
    store_32_big,
    store_64,
    store_64_big,
)
from state_pipelines.codecs.kernels import opcodes as op
from state_pipelines.codecs.kernels.strings import encode_java_text, encode_text, store_varint


@njit(cache=True, inline="never")
def fill_zero(target, size):  # type: ignore[no-untyped-def]
    """Write `size` zero bytes."""
    for i in range(size):
        store_8(target + i, 0)


@njit(cache=True, inline="never")
def wide_size(source):  # type: ignore[no-untyped-def]
    """Return the number of bytes in which `BigInteger.toByteArray` writes a number, given as 16 little-endian bytes."""
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
    """Run one instruction on the current block, the top of the stack `blocks`.

    The block ends at `out`, where at least 16 bytes of the output are free.

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
        # Flink always reserves 16 bytes for such a decimal, so that it can update the number in place.
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


@njit(cache=True, inline="never")
def is_null(columns, column, cursor):  # type: ignore[no-untyped-def]
    """Return whether the current value is null."""
    validity = columns[op.VALIDITY, column]
    return validity != 0 and load_u8(validity + cursor) == 0


@njit(cache=True, nogil=True)
def encode(program, pool, columns, count, base, capacity, stops):  # type: ignore[no-untyped-def]
    """Run `program` `count` times over columns and write consecutive records.

    Args:
        program: i32[n, 6], see `opcodes`.
        pool: address of constant bytes.
        columns: i64[8, m]; `COUNT` is the cursor, `CAPACITY` the number of values.
        count: number of records.
        base: address of the output.
        capacity: bytes of the output.
        stops: i64[count], filled with the end of each record relative to `base`.

    Returns:
        (status, record, bytes written, instruction): 0, or the error and its location; FULL requests a larger output.
    """
    loops = np.empty((op.MAX_DEPTH, 3), np.int64)
    blocks = np.empty((op.MAX_DEPTH, op.BLOCK_STATE), np.int64)
    frames = np.empty(op.MAX_DEPTH, np.int64)
    masks = np.empty(op.MAX_DEPTH, np.int64)
    marks = np.empty(op.MAX_DEPTH, np.int64)
    out = base
    limit = base + capacity
    for record in range(count):
        pc = 0
        depth = 0
        mask_depth = 0
        mark_depth = 0
        block_depth = 0
        frame_depth = 0
        while True:
            code = program[pc, 0]
            column = program[pc, 1]
            if code == op.END:
                break
            if out + 16 > limit:
                return op.FULL, record, out - base, pc
            cursor = 0
            if column >= 0:
                cursor = columns[op.COUNT, column]
                if cursor >= columns[op.CAPACITY, column]:
                    return op.TRUNCATED, record, out - base, pc
            if code == op.CELL:
                # The most frequent cells are written here instead of in `write_cell`: a call takes longer than that.
                at = blocks[block_depth - 1, op.BASE]
                if is_null(columns, column, cursor):
                    at += program[pc, 2] >> 3
                    store_8(at, load_u8(at) | 1 << (program[pc, 2] & 7))
                    pc = program[pc, 4]
                else:
                    blocks[block_depth - 1, op.SLOT] = at + program[pc, 3]
                    pc += 1
            elif code == op.CELL_FIXED:
                if is_null(columns, column, cursor):
                    return op.NULL_VALUE, record, out - base, pc
                width = program[pc, 2]
                at = blocks[block_depth - 1, op.SLOT]
                values = columns[op.VALUES, column] + width * cursor
                if width == 8:
                    store_64(at, load_i64(values))
                elif width == 4:
                    store_32(at, load_i32(values))
                else:
                    copy(at, values, width)
                columns[op.COUNT, column] = cursor + 1
                pc += 1
            elif code >= op.FIRST_CELL:
                status, target, block_depth, out = write_cell(
                    code, program, pc, columns, blocks, block_depth, out, limit
                )
                if status:
                    return status, record, out - base, target
                pc = target
            elif code == op.FIXED:
                if is_null(columns, column, cursor) and not program[pc, 3]:
                    return op.NULL_VALUE, record, out - base, pc
                width = program[pc, 2]
                values = columns[op.VALUES, column]
                if width == 8:
                    store_64_big(out, load_i64(values + 8 * cursor))
                elif width == 4:
                    store_32_big(out, load_i32(values + 4 * cursor))
                elif width == 1:
                    store_8(out, load_u8(values + cursor))
                else:
                    store_16_big(out, load_u8(values + 2 * cursor) | load_u8(values + 2 * cursor + 1) << 8)
                out += width
                columns[op.COUNT, column] = cursor + 1
                pc += 1
            elif code == op.TEXT:
                columns[op.COUNT, column] = cursor + 1
                if is_null(columns, column, cursor):
                    if not program[pc, 2]:
                        return op.NULL_VALUE, record, out - base, pc
                    store_8(out, 0)
                    out += 1
                else:
                    offsets = columns[op.VALUES, column]
                    start = load_i32(offsets + 4 * cursor)
                    size = load_i32(offsets + 4 * (cursor + 1)) - start
                    if out + 8 + 3 * size > limit:
                        return op.FULL, record, out - base, pc
                    out = encode_text(columns[op.DATA, column] + start, size, program[pc, 2], out)
                    if out < 0:
                        return op.BAD_TEXT, record, 0, pc
                pc += 1
            elif code == op.JAVA_TEXT:
                columns[op.COUNT, column] = cursor + 1
                if is_null(columns, column, cursor):
                    return op.NULL_VALUE, record, out - base, pc
                offsets = columns[op.VALUES, column]
                start = load_i32(offsets + 4 * cursor)
                size = load_i32(offsets + 4 * (cursor + 1)) - start
                if out + 16 + 2 * size > limit:
                    return op.FULL, record, out - base, pc
                stop = encode_java_text(columns[op.DATA, column] + start, size, out + 2)
                if stop < 0:
                    return op.BAD_TEXT, record, 0, pc
                if stop - out - 2 > 0xFFFF:
                    return op.TOO_LONG, record, out - base, pc
                store_16_big(out, stop - out - 2)
                out = stop
                pc += 1
            elif code == op.FLAG:
                if is_null(columns, column, cursor):
                    store_8(out, program[pc, 2])
                    out += 1
                    if out + program[pc, 3] > limit:
                        return op.FULL, record, out - base, pc
                    for _ in range(program[pc, 3]):
                        store_8(out, 0)
                        out += 1
                    pc = program[pc, 4]
                else:
                    store_8(out, 1 - program[pc, 2])
                    out += 1
                    pc += 1
            elif code == op.PRESENT:
                if is_null(columns, column, cursor) and not program[pc, 2]:
                    return op.NULL_VALUE, record, out - base, pc
                columns[op.COUNT, column] = cursor + 1
                pc += 1
            elif code == op.NULL or code == op.CLASS:
                if code == op.NULL and program[pc, 2] and not is_null(columns, column, cursor):
                    return op.NOT_NULL, record, out - base, pc
                columns[op.COUNT, column] = cursor + 1
                pc += 1
            elif code == op.JUMP:
                pc = program[pc, 2]
            elif code == op.SIZED or code == op.REST:
                if is_null(columns, column, cursor):
                    return op.NULL_VALUE, record, out - base, pc
                offsets = columns[op.VALUES, column]
                start = load_i32(offsets + 4 * cursor)
                size = load_i32(offsets + 4 * (cursor + 1)) - start
                if out + 16 + size > limit:
                    return op.FULL, record, out - base, pc
                if code == op.SIZED:
                    store_32_big(out, size)
                    out += 4
                copy(out, columns[op.DATA, column] + start, size)
                out += size
                columns[op.COUNT, column] = cursor + 1
                pc += 1
            elif code == op.LIST or code == op.DELIMITED:
                if is_null(columns, column, cursor):
                    return op.NULL_VALUE, record, out - base, pc
                offsets = columns[op.VALUES, column]
                size = load_i32(offsets + 4 * (cursor + 1)) - load_i32(offsets + 4 * cursor)
                columns[op.COUNT, column] = cursor + 1
                if code == op.LIST:
                    store_32_big(out, size)
                    out += 4
                if size == 0:
                    pc = program[pc, 3]
                else:
                    if depth >= op.MAX_DEPTH:
                        return op.TOO_DEEP, record, out - base, pc
                    loops[depth, 0] = size
                    depth += 1
                    pc += 1
            elif code == op.NEXT or code == op.DELIMITED_NEXT:
                loops[depth - 1, 0] -= 1
                if loops[depth - 1, 0] > 0:
                    if code == op.DELIMITED_NEXT and program[pc, 3] != op.NO_DELIMITER:
                        store_8(out, program[pc, 3])
                        out += 1
                    pc = program[pc, 2]
                else:
                    depth -= 1
                    pc += 1
            elif code == op.POJO:
                if is_null(columns, column, cursor):
                    store_8(out, 1)
                    out += 1
                    pc = program[pc, 2]
                else:
                    cases = program[pc, 3]
                    number = 0
                    if cases:
                        which = program[pc + 1, 1]
                        number = load_i32(columns[op.VALUES, which] + 4 * columns[op.COUNT, which])
                        if number < 0 or number > cases:
                            return op.BAD_SUBCLASS, record, out - base, pc
                    if number == 0:
                        store_8(out, 2)
                        out += 1
                        pc += 1 + cases
                    else:
                        case = pc + number
                        if program[case, 2] >= 0:
                            store_8(out, 8)
                            store_8(out + 1, program[case, 2])
                            out += 2
                        else:
                            size = program[case, 4]
                            if out + 16 + size > limit:
                                return op.FULL, record, out - base, pc
                            store_8(out, 4)
                            store_16_big(out + 1, size)
                            copy(out + 3, pool + program[case, 3], size)
                            out += 3 + size
                        pc = program[case, 5]
            elif code == op.MASK:
                size = program[pc, 2]
                if out + 16 + size > limit:
                    return op.FULL, record, out - base, pc
                if mask_depth >= op.MAX_DEPTH:
                    return op.TOO_DEEP, record, out - base, pc
                for i in range(size):
                    store_8(out + i, 0)
                if column >= 0:
                    kind = load_u8(columns[op.VALUES, column] + cursor)
                    store_8(out, (kind & 1) << 7 | (kind & 2) << 5)
                    columns[op.COUNT, column] = cursor + 1
                masks[mask_depth] = out
                mask_depth += 1
                out += size
                pc += 1
            elif code == op.MASKED:
                if is_null(columns, column, cursor):
                    bit = program[pc, 2]
                    at = masks[mask_depth - 1] + (bit >> 3)
                    store_8(at, load_u8(at) | (0x80 >> (bit & 7)))
                    pc = program[pc, 3]
                else:
                    pc += 1
            elif code == op.UNMASK:
                mask_depth -= 1
                pc += 1
            elif code == op.CONST:
                size = program[pc, 2]
                if out + 16 + size > limit:
                    return op.FULL, record, out - base, pc
                copy(out, pool + program[pc, 3], size)
                out += size
                pc += 1
            elif code == op.BIG_INTEGER or code == op.BIG_DECIMAL:
                columns[op.COUNT, column] = cursor + 1
                null = is_null(columns, column, cursor)
                if null:
                    store_32_big(out, 0)
                    out += 4
                else:
                    offsets = columns[op.VALUES, column]
                    start = columns[op.DATA, column] + load_i32(offsets + 4 * cursor)
                    size = load_i32(offsets + 4 * (cursor + 1)) - load_i32(offsets + 4 * cursor)
                    if out + 24 + size > limit:
                        return op.FULL, record, out - base, pc
                    first = load_u8(start) if size == 1 else 255
                    if first == 0 or first == 1:
                        store_32_big(out, first + 1)
                        out += 4
                    elif first == 10:
                        store_32_big(out, 3)
                        out += 4
                    else:
                        store_32_big(out, size + 4)
                        copy(out + 4, start, size)
                        out += 4 + size
                if code == op.BIG_DECIMAL:
                    scale = program[pc, 2]
                    at = columns[op.COUNT, scale]
                    columns[op.COUNT, scale] = at + 1
                    if not null:
                        store_32_big(out, load_i32(columns[op.VALUES, scale] + 4 * at))
                        out += 4
                pc += 1
            elif code == op.CHOICE:
                flag = load_u8(columns[op.VALUES, column] + cursor)
                store_8(out, flag)
                out += 1
                columns[op.COUNT, column] = cursor + 1
                pc = pc + 1 if flag else program[pc, 2]
            elif code == op.BLOCK:
                out += 4
                blocks[0, op.BASE] = out
                block_depth = 1
                pc += 1
            elif code == op.UNBLOCK:
                start = blocks[0, op.BASE]
                store_32_big(start - 4, out - start)
                block_depth = 0
                pc += 1
            elif code == op.FRAME:
                if frame_depth >= op.MAX_DEPTH:
                    return op.TOO_DEEP, record, out - base, pc
                out += 4
                frames[frame_depth] = out
                frame_depth += 1
                pc += 1
            elif code == op.UNFRAME:
                frame_depth -= 1
                store_32_big(frames[frame_depth] - 4, out - frames[frame_depth])
                pc += 1
            elif code == op.MARKER:
                null = is_null(columns, column, cursor)
                store_32_big(out, program[pc, 2] if null else program[pc, 4])
                out += 4
                pc = program[pc, 3] if null else pc + 1
            elif code == op.TAG:
                index = load_i32(columns[op.VALUES, column] + 4 * cursor)
                if index < 0 or index >= program[pc, 3]:
                    return op.BAD_FLAG, record, out - base, pc
                columns[op.COUNT, column] = cursor + 1
                case = pc + 1 + index
                if program[pc, 2] == 1:
                    store_8(out, program[case, 2])
                    out += 1
                else:
                    store_32_big(out, program[case, 2])
                    out += 4
                pc = program[case, 5]
            elif code == op.BYTES:
                if is_null(columns, column, cursor):
                    return op.NULL_VALUE, record, out - base, pc
                offsets = columns[op.VALUES, column]
                start = load_i32(offsets + 4 * cursor)
                size = load_i32(offsets + 4 * (cursor + 1)) - start
                if size != program[pc, 2]:
                    return op.BAD_SIZE, record, out - base, pc
                if out + 16 + size > limit:
                    return op.FULL, record, out - base, pc
                copy(out, columns[op.DATA, column] + start, size)
                out += size
                columns[op.COUNT, column] = cursor + 1
                pc += 1
            elif code == op.WIDE_DECIMAL:
                if is_null(columns, column, cursor):
                    return op.NULL_VALUE, record, out - base, pc
                if out + 32 > limit:
                    return op.FULL, record, out - base, pc
                source = columns[op.VALUES, column] + 16 * cursor
                size = wide_size(source)
                store_32_big(out, size)
                store_wide(out + 4, source, size)
                out += 4 + size
                columns[op.COUNT, column] = cursor + 1
                pc += 1
            elif code == op.BLOCKS:
                if is_null(columns, column, cursor):
                    return op.NULL_VALUE, record, out - base, pc
                offsets = columns[op.VALUES, column]
                size = load_i32(offsets + 4 * (cursor + 1)) - load_i32(offsets + 4 * cursor)
                columns[op.COUNT, column] = cursor + 1
                if size == 0:
                    store_8(out, 0)
                    out += 1
                    pc = program[pc, 3]
                else:
                    if depth >= op.MAX_DEPTH:
                        return op.TOO_DEEP, record, out - base, pc
                    out = store_varint(out, size)
                    loops[depth, 0] = size
                    depth += 1
                    pc += 1
            elif code == op.BLOCKS_NEXT:
                loops[depth - 1, 0] -= 1
                if loops[depth - 1, 0] > 0:
                    pc = program[pc, 2]
                else:
                    store_8(out, 0)
                    out += 1
                    depth -= 1
                    pc += 1
            elif code == op.MASKED_LIST:
                if is_null(columns, column, cursor):
                    return op.NULL_VALUE, record, out - base, pc
                offsets = columns[op.VALUES, column]
                size = load_i32(offsets + 4 * (cursor + 1)) - load_i32(offsets + 4 * cursor)
                columns[op.COUNT, column] = cursor + 1
                mask = (size + 7) // 8 if program[pc, 4] else 0
                if out + 16 + mask > limit:
                    return op.FULL, record, out - base, pc
                store_32_big(out, size)
                out += 4
                if size == 0:
                    pc = program[pc, 3]
                else:
                    if depth >= op.MAX_DEPTH:
                        return op.TOO_DEEP, record, out - base, pc
                    loops[depth, 0] = size
                    loops[depth, 1] = out
                    loops[depth, 2] = -1
                    for i in range(mask):
                        store_8(out + i, 0)
                    out += mask
                    depth += 1
                    pc += 1
            elif code == op.MASKED_ITEM:
                loops[depth - 1, 2] += 1
                if is_null(columns, column, cursor):
                    index = loops[depth - 1, 2]
                    at = loops[depth - 1, 1] + (index >> 3)
                    store_8(at, load_u8(at) | (0x80 >> (index & 7)))
                    pc = program[pc, 2]
                else:
                    pc += 1
            elif code == op.MARK:
                if mark_depth >= op.MAX_DEPTH:
                    return op.TOO_DEEP, record, out - base, pc
                marks[mark_depth] = out
                mark_depth += 1
                pc += 1
            elif code == op.LENGTH:
                mark_depth -= 1
                size = out - marks[mark_depth]
                while True:
                    store_8(out, size & 0xFF)
                    out += 1
                    size >>= 8
                    if size == 0:
                        break
                pc += 1
            else:
                return op.BAD_FLAG, record, out - base, pc
        stops[record] = out - base
    return op.OK, count, out - base, 0
