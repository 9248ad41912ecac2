"""Storage options: what fsspec needs to reach a storage, by the directory (root) that it holds for.

A text in the options may name environment variables as `${NAME}`. They are replaced when a file system is made, in the
process that makes it, so that secrets are neither in plans nor in arguments.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from state_pipelines.errors import UsageError, Where
from state_pipelines.storage.locations import complete_scheme
from state_pipelines.storage.option_secrets import remember_secrets
from state_pipelines.storage.yaml_documents import RepeatedKeyError, parse_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


VARIABLE = "STATE_PIPELINES_STORAGE_OPTIONS"
"""Environment variable with storage options for the whole process: a file, or the options themselves (YAML, JSON)."""

# Spellings of one storage.
_CANONICAL = {
    "s3a": "s3",
    "s3n": "s3",
    "s3p": "s3",
    "gcs": "gs",
    "az": "abfs",
    "abfss": "abfs",
    "wasb": "abfs",
    "wasbs": "abfs",
    "viewfs": "hdfs",
    "file": "",
    "local": "",
}
_OPTIONS_TEXT = re.compile(r"[{}\r\n]|:\s|:$")
_NAMED = re.compile(r"\$\{(\w+)\}")

_registered: dict[str, dict[str, Any]] = {}
_scoped: ContextVar[Mapping[str, dict[str, Any]] | None] = ContextVar("storage options", default=None)


def use_storage_options(options: Mapping[str, Mapping[str, Any]]) -> None:
    """Use options for all paths at or below some roots, in this process; the longest root decides.

    Args:
        options: by root, such as `s3://bucket/flink`, options of its fsspec file system. Those of a root that is known
            are replaced.

    Raises:
        UsageError: the options are not a mapping of roots to options.
    """
    checked = {canonicalize(root): dict(each) for root, each in _check(options, "the storage options").items()}
    _registered.update(checked)


def share_storage_options(options: Mapping[str, Mapping[str, Any]]) -> None:
    """Use options in this process, and in the processes that it starts from now on, by the variable `VARIABLE`.

    Raises:
        UsageError: see `use_storage_options`.
    """
    if options:
        use_storage_options(options)
        os.environ[VARIABLE] = json.dumps({**_from_environment(os.environ.get(VARIABLE, "")), **options})


@contextmanager
def scoped_storage_options(options: Mapping[str, Mapping[str, Any]], *, processes: bool = False) -> Iterator[None]:
    """Use options in a block of this thread and its `threads.Threads`; they precede those of the process.

    Args:
        options: by root, see `use_storage_options`.
        processes: also use them in other processes that the block starts, such as those of Spark. They get them by the
            variable `VARIABLE`, which other threads of this process see too.

    Raises:
        UsageError: see `use_storage_options`.
    """
    checked = {canonicalize(root): dict(each) for root, each in _check(options, "the storage options").items()}
    before = os.environ.get(VARIABLE)
    token = _scoped.set(checked)
    if processes and checked:
        os.environ[VARIABLE] = json.dumps({**_from_environment(before or ""), **checked})
    try:
        yield
    finally:
        _scoped.reset(token)
        if processes and checked:
            os.environ.pop(VARIABLE) if before is None else os.environ.update({VARIABLE: before})


def list_storage_options() -> dict[str, dict[str, Any]]:
    """List the options that hold here by root, as they were given: for `use_storage_options` in another process."""
    return _from_environment(os.environ.get(VARIABLE, "")) | _registered | dict(_scoped.get() or {})


def load_storage_options(text: str) -> dict[str, dict[str, Any]]:
    """Load options from a YAML or JSON file, or from such a text itself.

    A text with a brace, a line break or a colon before a blank is options, which hold secrets: no error quotes it.

    Raises:
        UsageError: there is no such file, or it does not hold options by root.
    """
    where = Where() if is_options_text(text) else Where(file=text)
    try:
        loaded = parse_yaml(text if where.file is None else _read_options(text))
    except RepeatedKeyError as error:
        # The key may be a secret in the wrong line.
        first, second = error.lines
        what = f"the storage options contradict themselves: a key is there twice, in lines {first} and {second}"
        raise UsageError(what, where=where) from None
    except (yaml.YAMLError, UnicodeDecodeError):
        # The message of the parser would quote the text, which may hold secrets.
        raise UsageError("the storage options are neither YAML nor JSON", where=where) from None
    return _check(loaded, "the storage options", where)


def is_options_text(text: str) -> bool:
    """Return whether a text is storage options, not the name of a file that holds them."""
    return _OPTIONS_TEXT.search(text) is not None


def _read_options(path: str) -> str:
    # Imported late: reading a file of a storage takes its options.
    from state_pipelines.storage.given_files import read_given_text

    return read_given_text(path, "the storage options")


def find_storage_options(path: str) -> dict[str, Any]:
    """Find the options for a path: those of the longest root that holds it, with environment variables replaced.

    Raises:
        UsageError: an environment variable is not set.
    """
    known = list_storage_options()
    if not known:
        return {}
    plain = canonicalize(path)
    fitting = [root for root in known if plain == root or plain.startswith(root.rstrip("/") + "/")]
    if not fitting:
        return {}
    root = max(fitting, key=len)
    found = _expand(known[root], root)
    if not isinstance(found, dict):
        return {}
    remember_secrets(found)
    return found


@cache
def _from_environment(text: str) -> dict[str, dict[str, Any]]:
    if not text:
        return {}
    return {canonicalize(root): options for root, options in load_storage_options(text).items()}


def _check(options: object, what: str, where: Where | None = None) -> dict[str, dict[str, Any]]:
    hint = "Write a mapping of roots (s3://bucket/directory) to mappings of options"
    if not isinstance(options, dict):
        raise UsageError(f"{what} are not a mapping", where=where, hint=hint)
    for root, each in options.items():
        if not isinstance(root, str) or not isinstance(each, dict) or not all(isinstance(name, str) for name in each):
            # A text in place of a file may have a secret wherever a root should be.
            named = "a root" if where is not None and where.file is None else repr(root)
            raise UsageError(f"{what} of {named} are not a mapping", where=where, hint=hint)
    return options


def canonicalize(path: str) -> str:
    """Make equal what names one directory: `s3a://b/c/`, `s3://b/c`; `file:/a`, `/a`."""
    path = complete_scheme(path)
    scheme, separator, rest = path.partition("://")
    if not separator:
        return path.rstrip("/") or "/"
    scheme = _CANONICAL.get(scheme, scheme)
    rest = rest.rstrip("/")
    return f"{scheme}://{rest}" if scheme else rest or "/"


def _expand(value: Any, root: str) -> Any:
    if isinstance(value, dict):
        return {name: _expand(each, root) for name, each in value.items()}
    if isinstance(value, list):
        return [_expand(each, root) for each in value]
    return _NAMED.sub(lambda match: _read_variable(match[1], root), value) if isinstance(value, str) else value


def _read_variable(name: str, root: str) -> str:
    if name not in os.environ:
        raise UsageError(
            f"the environment variable {name} is not set", where=Where(file=root), hint="The storage options name it"
        )
    return os.environ[name]
