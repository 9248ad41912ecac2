"""What a generated snapshot is like, apart from its number of keys."""

from __future__ import annotations

from dataclasses import dataclass

from state_pipelines.errors import UsageError

KEYS = ("string", "long", "pojo")
"""Types of keys."""

STATES = ("value", "profile", "map", "list", "timers")
"""Kinds of states, one of each at most."""

FORMATS = ("canonical", "heap-native", "rocksdb-native")


@dataclass(frozen=True)
class Shape:
    """The shape of a snapshot.

    Attributes:
        key: one of `KEYS`.
        states: some of `STATES`, in the order of the header.
        format: one of `FORMATS`.
        compressed: snappy compression of canonical and heap files.
        skew: share of all keys, 0 to 1, that lie in key group `HOT`; with 0 keys lie as their hashes happen to.
        parallelism: subtasks.
        max_parallelism: key groups.
        per_key: entries of a map, elements of a list, of each key.

    Raises:
        UsageError: these do not go together.
    """

    key: str = "string"
    states: tuple[str, ...] = ("value", "profile")
    format: str = "canonical"
    compressed: bool = False
    skew: float = 0.0
    parallelism: int = 2
    max_parallelism: int = 128
    per_key: int = 5

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        for what, given, known in (("key", [self.key], KEYS), ("state", self.states, STATES)):
            unknown = [each for each in given if each not in known]
            if unknown or len(set(given)) < len(given) or not given:
                raise UsageError(f"{', '.join(given)!r} is no choice of {what}s", hint=f"Known: {', '.join(known)}")
        if self.format not in FORMATS:
            raise UsageError(f"{self.format!r} is no format", hint=f"Known: {', '.join(FORMATS)}")
        if self.compressed and self.format == "rocksdb-native":
            raise UsageError("RocksDB compresses its own blocks", hint="Leave compression out")
        if not 0 <= self.skew <= 1 or (0 < self.skew < 1 and self.max_parallelism == 1):
            raise UsageError(
                f"a share of {self.skew} of the keys cannot lie in one of {self.max_parallelism} key groups"
            )
        if self.per_key < 1:
            raise UsageError("a map or list has at least one entry per key")


HOT = 0
"""The key group that `Shape.skew` fills."""
