"""Errors that happen inside Spark, as errors of this package."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from state_pipelines import errors
from state_pipelines.errors import MigrationError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterator

# PySpark prints what SQL it refuses as a page of JSON; the errors here say it in a line.
for _name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
    PySparkLogger.getLogger(_name).disabled = True

_HINT_IMPORT = (
    "The workers of Spark do not import what only the driver finds, such as a module beside the script: set PYTHONPATH "
    "before the session starts, call spark.sparkContext.addPyFile, or pyspark.cloudpickle.register_pickle_by_value of "
    "the module"
)

_RAISED = re.compile(r"state_pipelines\.errors\.(\w+): (.*)")


@contextmanager
def translate_failures(what: str, kind: type[StateError] = MigrationError) -> Iterator[None]:
    """Turn what Spark raises into a `StateError`.

    An error of this package that a worker raised comes back under its own class; what code of the user raises there,
    anything else that Spark refuses (an expression with a mistake, an overflow), and a worker that dies, become `kind`.

    Args:
        what: what was being done, for the message.
        kind: of errors that are not of this package.
    """
    try:
        yield
    except PySparkException as error:
        text = str(error)
        if found := _RAISED.search(text):
            raised = getattr(errors, found[1], StateError)
            raise raised(found[2].strip()) from error
        if error.getCondition() == "USER_RAISED_EXCEPTION":
            message = (error.getMessageParameters() or {}).get("errorMessage") or text
            raise kind(message) from error
        if error.getCondition() == "PYTHON_EXCEPTION":
            traceback = (error.getMessageParameters() or {}).get("traceback") or text
            message = _summarize(traceback)
            hint = _HINT_IMPORT if message.startswith("ModuleNotFoundError") else ""
            raise kind(f"{what}: {message}", hint=hint) from error
        first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
        raise kind(f"{what}: Spark says {first.strip()}") from error
    except Py4JJavaError as error:
        message = error.java_exception.getMessage() or error.java_exception.getClass().getName()
        raise kind(f"{what}: Spark says {str(message).splitlines()[0].strip()}") from error


def _summarize(traceback: str) -> str:
    """Return class and message of the error at the end of a traceback, with file, line and function."""
    _, _, last = traceback.rpartition("Traceback (most recent call last):\n")
    lines = last.splitlines()
    frames = [index for index, line in enumerate(lines) if line.startswith("  ")]
    message = " ".join(line.strip() for line in lines[frames[-1] + 1 if frames else 0 :])
    calls = [lines[index].strip() for index in frames if lines[index].startswith('  File "')]
    return f"{message} ({calls[-1]})" if calls else message
