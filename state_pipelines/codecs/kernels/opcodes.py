"""The instruction set that layouts compile to, shared by the decoding and the encoding kernel.

An instruction is a row of six i32: opcode, column, then four arguments. Every opcode denotes the same bytes in both
directions: decoding appends to its column, encoding takes the next value of it. Column -1 is a value to skip (decoding
only).
"""

from __future__ import annotations

END = 0
FIXED = 1  # column, width, whether null is among the values: big-endian bits
TEXT = 2  # column, nullable in band
SIZED = 3  # column: i32 length, bytes
CONST = 4  # -, length: that many bytes from the pool at argument 2
FLAG = 5  # column, null flag, padding (-1: the rest of the span), target when null
PRESENT = 6  # column, whether encoding accepts null: a struct or constant that is present
JUMP = 7  # -, target
NULL = 8  # column, whether encoding refuses a value that is not null: an absent value
LIST = 9  # column, smallest element, target after the list: i32 count
NEXT = 10  # -, target of the first instruction of the element
DELIMITED = 11  # column, delimiter (-1: none), target after the list
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
LENGTH = 22  # length of the bytes written since the mark, little-endian base 256
CLASS = 23  # class column, number of the class: which class a struct has
REST = 24  # column: the rest of the span
POSITION = 25  # column: the position of the cursor (decoding only)
JAVA_TEXT = 26  # column: u16 length, modified UTF-8

# Instructions for Avro (`avro_layout`) and other layouts that are read as a stream.
FRAME = 40  # i32 length; the instructions up to UNFRAME use exactly that many bytes
UNFRAME = 41
BLOCKS = 42  # column, smallest element, target after the list: blocks of a varint count and elements, up to a zero
BLOCKS_NEXT = 43  # -, target of the first instruction of the element, smallest element, column of the list
TAG = 44  # column of the case (-1: none), bytes of the tag, number of CASE rows that follow
MARKER = 45  # column, number of null, target when null, number of a value: i32
BYTES = 46  # column, length: that many bytes
MASKED_LIST = 47  # column, smallest element, target after the list, whether there is a mask: i32 count, null bits
MASKED_ITEM = 48  # column, target when null
WIDE_DECIMAL = 49  # column of 16 bytes: i32 length, two's complement

# Instructions for blocks of the table runtime (`binary_rows`): little-endian, addressed from the start of the block.
BLOCK = 50  # i32 length, then a block, which CELL instructions read
UNBLOCK = 51
FIRST_CELL = 60
ROW = 60  # column of the row kind (-1: none), bytes of the bit set, bytes with slots, whether it may have a kind
CELL = 61  # column, bit in the bit set, offset of the slot, target when null
ITEMS = 62  # column of the list, bytes of an element, target after the array, role (see below)
ITEM = 63  # column, bytes of an element, target when null
NEXT_ITEM = 64  # -, target of ITEM
CELL_FIXED = 65  # column, width
CELL_BYTES = 66  # column, whether up to 7 bytes are stored in the slot itself
CELL_DECIMAL = 67  # column of 16 bytes
CELL_TIME = 68  # column of milliseconds, column of nanoseconds
OPEN = 69  # the block that a slot points at
CLOSE = 70
KEYS = 71  # of a map: the block of its keys
ITEM_VALUES = 72  # of a map: continue with the block of its values
MAP_END = 73

NO_DELIMITER = -1  # instead of the delimiter of DELIMITED and DELIMITED_NEXT

ROLE_LIST = 0
ROLE_KEYS = 1
ROLE_VALUES = 2  # values of a map: as many as its keys, so they have no list column

# Indices in the state of a block (i64 each).
BASE = 0  # address
STOP = 1  # end address
SLOT = 2  # address of the current cell
AT = 3  # index of the current element
ITEM_COUNT = 4
HEADER = 5  # bytes before the first element
LEFT = 6  # bytes of the block that variable-length data may still take
BLOCK_STATE = 7

ARGUMENTS = 6

# Rows of the table of columns (i64 values, one column of the table per kernel column), which the kernels use.
VALUES = 0  # address of values, or of i32 offsets
COUNT = 1
CAPACITY = 2  # values that fit
VALIDITY = 3  # address of one byte per value, 0 when the column has no nulls
DATA = 4  # address of the bytes of a variable column
DATA_SIZE = 5
DATA_CAPACITY = 6
WIDTH = 7  # bytes per fixed value; 0 for a variable column or a list; -1 for a struct
COLUMN_ROWS = 8

# Status codes of a kernel.
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
NULL_VALUE = 10  # encoding: a null that the layout cannot store
NOT_NULL = 11  # encoding: a value in a field that the object does not have
BAD_SIZE = 12  # encoding: bytes of another length than the type has
BAD_KIND = 13  # a row inside another one that is no insertion
OVERLAP = 15  # variable-length data of a block together are longer than the block
HALF_TEXT = 16
TOO_LONG = 14  # encoding: text of more than 65,535 bytes, which `writeUTF` cannot write

MESSAGES = {
    TRUNCATED: "the bytes end before the value does",
    BAD_LENGTH: "a length or count does not fit in the bytes that are left",
    BAD_FLAG: "a flag byte has a value that the format does not know",
    BAD_SUBCLASS: "an object has a class that the serializer snapshot does not list",
    LEFT_OVER: "bytes are left over after the value",
    TOO_DEEP: "values are nested too deeply",
    BAD_TEXT: "a string holds half of a surrogate pair or an impossible character",
    HALF_TEXT: "a string holds half of a surrogate pair, for which UTF-8, and so a column of texts, has no form",
    BAD_CONSTANT: "a byte differs from the constant that the serializer writes",
    NULL_VALUE: "a value is null where the serializer cannot write null",
    BAD_SIZE: "the size of the bytes does not fit the type",
    TOO_LONG: "a text takes more than the 65,535 bytes that `writeUTF` has room for",
    OVERLAP: "variable-length data of a row or an array overlap",
    BAD_KIND: "a nested row has a row kind, for which there is no column",
    NOT_NULL: "there is a value where the object has none (the other side of an Either, a field of another class)",
}

MAX_DEPTH = 32
MAX_EMPTY_ITEMS = 1 << 13  # elements without bytes that the lists of a record may have together
MAX_OFFSET = (1 << 31) - 1  # Arrow's offsets are i32
