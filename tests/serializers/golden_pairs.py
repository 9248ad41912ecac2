"""Pairs of serializers and what Flink says of them: recorded by `tests/flink/make_compatibility.py`."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "compatibility"
LINES = ("1.20", "2.2")


@dataclass(frozen=True)
class Pair:
    """An old and a new serializer by name.

    Attributes:
        old: name of the old one; its snapshot is in `Golden.snapshots`.
        new: name of the new one.
        answer: of the new snapshot when it is asked about the old one: a name of `Outcome`, or `!` and what is raised.
        legacy: of the old snapshot when it is asked about the new serializer; empty in 2.x, which cannot do that.
        restore: why the old serializer cannot be restored; empty when it can.
    """

    old: str
    new: str
    answer: str
    legacy: str
    restore: str

    def __str__(self) -> str:
        """The two names."""
        return f"{self.old} -> {self.new}"


@dataclass(frozen=True)
class Golden:
    """What one release line says.

    Attributes:
        snapshots: name -> snapshot in the outer form.
        pairs: every pair that was asked about.
    """

    snapshots: dict[str, bytes]
    pairs: tuple[Pair, ...]


def golden_file(line: str) -> Path:
    """The file of a release line."""
    return DATA / f"flink-{line}.tsv.gz"


def read_golden(line: str) -> Golden:
    """The recorded pairs of a release line."""
    return parse_golden(read_lines(line))


def read_lines(line: str) -> str:
    """As `read_golden`, the text."""
    return gzip.decompress(golden_file(line).read_bytes()).decode()


def write_golden(line: str, text: str) -> None:
    """Mirror of `read_golden`; equal texts give equal bytes."""
    golden_file(line).write_bytes(gzip.compress(text.encode(), mtime=0))


def parse_golden(text: str) -> Golden:
    """The lines that `harness.ResolvePairs` writes."""
    snapshots, pairs = {}, []
    for line in text.splitlines():
        kind, *words = line.split("\t")
        if kind == "S":
            snapshots[words[0]] = bytes.fromhex(words[1])
        else:
            pairs.append(Pair(*words))
    return Golden(snapshots, tuple(pairs))
