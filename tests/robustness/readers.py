"""Every reader by name, and one attempt of it: damaged input that depends on the seed and the number of the attempt."""

from __future__ import annotations

import traceback
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol

from state_pipelines.errors import StateError
from tests.robustness.byte_readers import BYTE_READERS
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


READERS: Mapping[str, Callable[[], DamagedReader]] = {
    **BYTE_READERS,
    **TEXT_READERS,
    **VALUE_READERS,
    **SNAPSHOT_READERS,
}
"""By name: makes the reader."""


@cache
def make_reader(name: str) -> DamagedReader:
    """The reader of a name, made once."""
    return READERS[name]()


def attempt(name: str, seed: int, number: int) -> bool | Finding:
    """Read one damaged input.

    Returns:
        Whether it could be read; or the error that is no `StateError`.
    """
    try:
        make_reader(name).attempt(Random(f"{seed} {name} {number}"))
    except StateError:
        return False
    except Exception as error:  # noqa: BLE001 - any other error is what is looked for
        frames = [each for each in traceback.extract_tb(error.__traceback__) if PACKAGE in each.filename]
        frame = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).parent.name}/{Path(frame.filename).name}:{frame.lineno}"
        return Finding(type(error).__name__, place, str(error)[:200])
    return True
