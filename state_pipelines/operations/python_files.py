"""Python files of users that define one variable: migrations, suites of expectations."""

from __future__ import annotations

import runpy
from typing import TYPE_CHECKING

from state_pipelines.errors import StateError, UsageError, Where

if TYPE_CHECKING:
    from pathlib import Path


def run_python_file(path: Path | str, name: str, *, kind: type[StateError] = UsageError, hint: str = "") -> object:
    """Run a file and return a variable that it defines.

    Args:
        path: the file.
        name: of the variable.
        kind: class of the error.
        hint: an example of the variable, for the error.

    Raises:
        StateError: of `kind`; the file cannot be run, or does not define the variable.
    """
    where = Where(file=str(path))
    try:
        found = runpy.run_path(str(path))
    except Exception as error:
        # The file is code of the user, which may raise anything.
        raise kind(f"the file cannot be run: {type(error).__name__}: {error}", where=where) from error
    if name not in found:
        raise kind(f"the file does not define {name}", where=where, hint=hint)
    return found[name]
