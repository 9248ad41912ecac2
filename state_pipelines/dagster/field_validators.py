"""Validators of configuration fields, with the messages of the parsers that read the fields later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import AfterValidator

from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


def parsed_by(parse: Callable[[Any], object]) -> AfterValidator:
    """Return a validator that refuses what a parser refuses with a `UsageError`; the value stays as it is."""

    def check(value: object) -> object:
        try:
            parse(value)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return value

    return AfterValidator(check)
