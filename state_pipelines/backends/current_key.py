"""The current key of a backend, as the begin of record keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_pipelines.errors import UsageError
from state_pipelines.keyed.key_groups import encode_prefix

if TYPE_CHECKING:
    from state_pipelines.backends.key_context import KeyContext
    from state_pipelines.metadata.handles import KeyGroupRange


class CurrentKey:
    """The current key; states build their record keys from it.

    Args:
        keys: keys of the operator.
        key_groups: range of the subtask.

    Attributes:
        value: the key; None when no key is set.
        key_group: its key group; -1 when no key is set.
        raw: bytes of the key.
        plain: key-group prefix and key; None when no key is set.
    """

    __slots__ = ("_measured", "_prefixes", "_range", "_start", "key_group", "keys", "plain", "raw", "value")

    def __init__(self, keys: KeyContext, key_groups: KeyGroupRange) -> None:
        self.keys = keys
        self._range = key_groups
        self._start = key_groups.start
        self._prefixes = [encode_prefix(key_group, keys.prefix) for key_group in key_groups]
        self.clear()

    def clear(self) -> None:
        """Leave the keyed context."""
        self.value: Any = None
        self.key_group = -1
        self.raw = b""
        self.plain: bytes | None = None
        self._measured: bytes | None = None

    def set(self, value: Any) -> None:
        """Make a key the current one.

        Raises:
            UsageError: the key is null, or its key group is not in the range of the subtask.
            ValueRangeError: the key does not fit its serializer.
        """
        if value is None:
            raise UsageError("Assigned key must not be null!")
        raw = self.keys.encode(value)
        key_group = self.keys.find_key_group(value, raw)
        offset = key_group - self._start
        if not 0 <= offset < len(self._prefixes):
            # The words of `KeyGroupRangeOffsets.newIllegalKeyGroupException`.
            raise UsageError(
                f"Key group {key_group} is not in KeyGroupRange{{startKeyGroup={self._start}, "
                f"endKeyGroup={self._range.end}}}. Unless you're directly using low level state access APIs, this is "
                "most likely caused by non-deterministic shuffle key (hashCode and equals implementation)."
            )
        self.value, self.key_group, self.raw = value, key_group, raw
        self.plain = self._prefixes[offset] + raw
        self._measured = None

    @property
    def measured(self) -> bytes | None:
        """Key-group prefix, key and the length of the key, where it could be confused with the namespace.

        Source: `CompositeKeySerializationUtils.writeLengthFrom`.
        """
        if self._measured is None and self.plain is not None:
            size = len(self.raw)
            self._measured = self.plain + size.to_bytes(max(1, (size.bit_length() + 7) // 8), "little")
        return self._measured
