"""Words that users choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from enum import Enum

Choice = TypeVar("Choice", bound="Enum")


def parse_choice(choices: type[Choice], value: Choice | str, what: str) -> Choice:
    """The choice that a word names.

    Args:
        choices: an enum whose values are the words.
        value: a word, or the choice itself.
        what: what is chosen, for the error.

    Raises:
        UsageError: there is no such choice.
    """
    try:
        return choices(value)
    except ValueError:
        known = ", ".join(str(each.value) for each in choices)
        raise UsageError(f"{value!r} is no {what}", hint=f"Choose from {known}") from None
