"""Python functions that the description of a job names as FILE.py:FUNCTION."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError, Where
from state_pipelines.operations.python_files import run_python_file

if TYPE_CHECKING:
    from collections.abc import Callable


def split_function(text: str) -> tuple[str, str]:
    """Split FILE.py:FUNCTION into file and name.

    Raises:
        UsageError: it has another form.
    """
    file, colon, name = text.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise UsageError(f"{text} names no function", hint="Write FILE.py:FUNCTION, such as stream.py:sum_orders")
    return file, name


def load_function(text: str) -> Callable[..., object]:
    """Run the file, and return the function.

    Raises:
        UsageError: the file cannot be run, or defines no such function.
    """
    file, name = split_function(text)
    found = run_python_file(file, name)
    if not callable(found):
        raise UsageError(f"{name} is {type(found).__name__}, not a function", where=Where(file=file))
    return found
