"""Every reader by name, and one attempt of it: damaged input that depends on the seed and the number of the attempt."""

from __future__ import annotations

import traceback
from enum import IntEnum
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol

from state_pipelines.errors import StateError
from tests.robustness.byte_readers import BYTE_READERS
from tests.robustness.edited_metadata import MetadataEdits, make_metadata_edits
from tests.robustness.every_byte import EVERY_BYTE, EveryByte
from tests.robustness.snapshot_readers import SNAPSHOT_READERS
from tests.robustness.text_readers import TEXT_READERS
from tests.robustness.value_readers import VALUE_READERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PACKAGE = "state_pipelines"


class DamagedReader(Protocol):
    """A reader with sound input of its own."""

    def attempt(self, chance: Random) -> None:
        """Read one damaged input."""

    def read_sound(self) -> None:
        """Read the sound input."""


class Finding(NamedTuple):
    """An error that is no `StateError`.

    Attributes:
        kind: its type.
        place: file and line of the package that it comes from.
        text: its message.
    """

    kind: str
    place: str
    text: str


class Result(IntEnum):
    """An attempt without a finding: the input was read, refused with a `StateError`, or read as known other rows."""

    READ = 0
    REFUSED = 1
    CHANGED = 2


METADATA_EDITS = "edited-metadata"
"""Name of the reader whose damage is none to the format."""

RANDOM: Mapping[str, Callable[[], DamagedReader | MetadataEdits]] = {
    **BYTE_READERS,
    **TEXT_READERS,
    **VALUE_READERS,
    **SNAPSHOT_READERS,
    METADATA_EDITS: make_metadata_edits,
}
"""By name: makes a reader of input with random damage."""

READERS: Mapping[str, Callable[[], DamagedReader | MetadataEdits | EveryByte]] = {**RANDOM, **EVERY_BYTE}
"""By name: makes the reader."""


@cache
def make_reader(name: str) -> DamagedReader | MetadataEdits | EveryByte:
    """The reader of a name, made once."""
    return READERS[name]()


def attempt(name: str, seed: int, number: int) -> Result | Finding:
    """Read one damaged input.

    Returns:
        What came of it; or the error that is no `StateError`.
    """
    try:
        reader = make_reader(name)
        if isinstance(reader, EveryByte):
            return Result.CHANGED if reader.damage(seed, number) else Result.READ
        chance = Random(f"{seed} {name} {number}")
        if isinstance(reader, MetadataEdits):
            return Result.CHANGED if reader.edit(chance) else Result.READ
        reader.attempt(chance)
    except StateError:
        return Result.REFUSED
    except Exception as error:  # noqa: BLE001 - any other error is what is looked for
        frames = [each for each in traceback.extract_tb(error.__traceback__) if PACKAGE in each.filename]
        frame = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).parent.name}/{Path(frame.filename).name}:{frame.lineno}"
        return Finding(type(error).__name__, place, str(error)[:200])
    return Result.READ
