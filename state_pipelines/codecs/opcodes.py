"""The instruction set that layouts compile to, shared by the decoding and the encoding kernel.

An instruction is a row of six i32: opcode, column, then four arguments. Every opcode means the same bytes in both
directions: decoding appends to its column, encoding takes the next value of it. Column -1 is a value that nobody
asked for; it is skipped (decoding only).
"""

from __future__ import annotations

END = 0
FIXED = 1  # column, width, whether null is among the values: big-endian bits
TEXT = 2  # column, nullable in band
SIZED = 3  # column: i32 length, bytes
CONST = 4  # -, length: that many bytes from the pool at argument 2
FLAG = 5  # column, null flag, padding (-1: the rest of the span), target when null
PRESENT = 6  # column, whether it may be null all the same: a struct that is there
JUMP = 7  # -, target
NULL = 8  # column, whether encoding checks it: a value that is not there
LIST = 9  # column, smallest element, target behind the list: i32 count
NEXT = 10  # -, target of the first instruction of the element
DELIMITED = 11  # column, delimiter, target behind the list
DELIMITED_NEXT = 12  # -, target of the first instruction of the element, delimiter, column of the list
POJO = 13  # column, target when null, number of CASE rows that follow
CASE = 14  # class column, tag (-1: by name), pool offset of the name, its length, target
CHOICE = 15  # column of the flag, target of the right side
MASK = 16  # column of the row kind (-1: none), bytes of the mask, whether there is a row kind
MASKED = 17  # column, bit, target when null
UNMASK = 18
BIG_INTEGER = 19  # column
BIG_DECIMAL = 20  # column of the unscaled value, column of the scale
MARK = 21
LENGTH = 22  # length of what was written since the mark, little-endian base 256
CLASS = 23  # class column, number of the class: which class a struct has
REST = 24  # column: the rest of the span
POSITION = 25  # column: where the cursor is (decoding only)

ARGUMENTS = 6

# Rows of the column table that the kernels work on (i64 each).
VALUES = 0  # address of values, or of i32 offsets
COUNT = 1
CAPACITY = 2  # values that fit
VALIDITY = 3  # address of one byte per value, 0 when the column has no nulls
DATA = 4  # address of the bytes of a variable column
DATA_SIZE = 5
DATA_CAPACITY = 6
WIDTH = 7  # bytes per fixed value; 0 for a variable column or a list; -1 for a struct
COLUMN_ROWS = 8

# What a kernel answers in place of a count.
OK = 0
TRUNCATED = 1
BAD_LENGTH = 2
BAD_FLAG = 3
BAD_SUBCLASS = 4
LEFT_OVER = 5
FULL = 6  # a column (or the output) is too small: enlarge and run again
TOO_DEEP = 7
BAD_TEXT = 8
BAD_CONSTANT = 9
NULL_VALUE = 10  # encoding: null where the layout has no form for it
NOT_NULL = 11  # encoding: a value in a part that the object does not have

MESSAGES = {
    TRUNCATED: "the bytes end before the value does",
    BAD_LENGTH: "a length or count does not fit in the bytes that are left",
    BAD_FLAG: "a flag byte has a value that the format does not know",
    BAD_SUBCLASS: "an object has a class that the serializer snapshot does not list",
    LEFT_OVER: "bytes are left over behind the value",
    TOO_DEEP: "values are nested too deeply",
    BAD_TEXT: "a string holds half of a surrogate pair or an impossible character",
    BAD_CONSTANT: "a constant byte is not what the serializer writes",
    NULL_VALUE: "a value is null where the serializer has no form for null",
    NOT_NULL: "there is a value where the object has none (the other side of an Either, a field of another class)",
}

MAX_DEPTH = 32
MAX_EMPTY_ITEMS = 1 << 16  # elements without bytes that a list may have
MAX_OFFSET = (1 << 31) - 1  # Arrow's offsets are i32
