"""Type tags of state handles in `_metadata` (`MetadataV2V3SerializerBase` and its subclasses)."""

from __future__ import annotations

from enum import IntEnum


class HandleTag(IntEnum):
    """The tag byte of a state handle; stream, keyed and operator handles share one number space."""

    NULL = 0
    BYTE_STREAM = 1
    FILE = 2
    KEY_GROUPS = 3
    PARTITIONABLE_OPERATOR = 4
    INCREMENTAL = 5
    RELATIVE_FILE = 6
    SAVEPOINT_KEY_GROUPS = 7
    CHANGELOG = 8
    CHANGELOG_BYTE_INCREMENT = 9
    CHANGELOG_FILE_INCREMENT = 10
    INCREMENTAL_V2 = 11
    KEY_GROUPS_V2 = 12
    CHANGELOG_FILE_INCREMENT_V2 = 13
    CHANGELOG_V2 = 14
    SEGMENT_FILE = 15
    EMPTY_SEGMENT_FILE = 16
    SEGMENT_PARTITIONABLE_OPERATOR = 17


class ChannelTag(IntEnum):
    """The tag byte of a channel state handle since metadata version 6."""

    INPUT_CHANNEL = 1
    RESULT_SUBPARTITION = 2
    MERGED_INPUT_CHANNEL = 3
    MERGED_RESULT_SUBPARTITION = 4
