"""`OutputTag`: the name of a side output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from state_pipelines.datastream.type_information import TypeInformation


@dataclass(frozen=True)
class OutputTag:
    """A side output; a function emits to it by `yield tag, value`.

    Attributes:
        tag_id: name of the side output.
        type_info: type of its values; PyFlink pickles them if there is none.

    Raises:
        UsageError: the name is empty.
    """

    tag_id: str
    type_info: TypeInformation | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.tag_id:
            raise UsageError("OutputTag tag_id cannot be None or empty string")
