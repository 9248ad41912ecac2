"""Flink's own configuration (`config.yaml`, or `flink-conf.yaml` of 1.x), as far as it is about snapshots.

Source: `CheckpointingOptions`, `ExecutionConfigOptions`; `YamlParserUtils` for the nested and the flat form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import yaml

from state_pipelines.errors import UsageError, at
from state_pipelines.storage import read_file, resolve
from state_pipelines.storage.documents import MOST_TEXT, parse_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class StateBackend(StrEnum):
    """State backend, by the value of `state.backend.type`."""

    HASHMAP = "hashmap"
    ROCKSDB = "rocksdb"


CHECKPOINTS = ("execution.checkpointing.dir", "state.checkpoints.dir")
"""Keys of the option for the directory of checkpoints; these tuples have the key of Flink 2 first, then older keys."""

SAVEPOINTS = ("execution.checkpointing.savepoint-dir", "state.savepoints.dir", "savepoints.state.backend.fs.dir")
"""Keys of the option for the directory of savepoints."""

NUM_RETAINED = ("execution.checkpointing.num-retained", "state.checkpoints.num-retained")
"""Keys of the option for the number of completed checkpoints that Flink keeps."""

INTERVAL = ("execution.checkpointing.interval",)
"""Key of the option for the time between checkpoints."""

TTL = ("table.exec.state.ttl",)
"""Key of the option for the time after which SQL drops idle state."""

_LEGACY_FILE = "flink-conf.yaml"
FLINK_2 = (2, 0)
"""First release with Kryo 5, and without the APIs of Scala and DataSet."""

_RELEASE = re.compile(r"(\d{1,3})\.(\d{1,3})(?:\.\d{1,3})?")
_DURATION = re.compile(r"(\d+)\s*([a-zµ]*)", re.IGNORECASE)
# Units of Flink's `TimeUtils`; a number without a unit is in milliseconds.
_UNITS = {
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), timedelta(milliseconds=1)),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), timedelta(seconds=1)),
    **dict.fromkeys(("m", "min", "minute", "minutes"), timedelta(minutes=1)),
    **dict.fromkeys(("h", "hour", "hours"), timedelta(hours=1)),
    **dict.fromkeys(("d", "day", "days"), timedelta(days=1)),
    **dict.fromkeys(("µs", "micro", "micros", "microsecond", "microseconds"), timedelta(microseconds=1)),
}


@dataclass(frozen=True)
class FlinkConfig:
    """Options of a Flink job that concern its snapshots; None for options that the file does not have.

    Attributes:
        checkpoints: directory of checkpoints.
        savepoints: directory of savepoints.
        num_retained: number of completed checkpoints that Flink keeps.
        interval: time between checkpoints.
        ttl: time after which SQL drops idle state.
    """

    checkpoints: str | None = None
    savepoints: str | None = None
    num_retained: int | None = None
    interval: timedelta | None = None
    ttl: timedelta | None = None


def load_flink_config(path: str) -> FlinkConfig:
    """Read a configuration file of Flink.

    Raises:
        MissingFileError: there is no such file.
        UsageError: the file is no configuration, or the value of an option has a wrong type.
    """
    options = load_flink_options(path)
    with at(file=path):
        retained = _find(options, NUM_RETAINED)
        if retained is not None and not str(retained).isdigit():
            raise UsageError(f"{NUM_RETAINED[0]} is {retained!r}, not a number", hint="Write a number, such as 3")
        return FlinkConfig(
            checkpoints=_text(_find(options, CHECKPOINTS)),
            savepoints=_text(_find(options, SAVEPOINTS)),
            num_retained=None if retained is None else int(str(retained)),
            interval=_find_duration(options, INTERVAL),
            ttl=_find_duration(options, TTL),
        )


def load_flink_options(path: str) -> dict[str, Any]:
    """Read all options of a configuration file of Flink, by key.

    Raises:
        MissingFileError: there is no such file.
        UsageError: the file is no configuration.
    """
    with at(file=path):
        try:
            location = resolve(path)
            # If an option is repeated, Flink takes the last value in the legacy file, but refuses a `config.yaml`
            # (`GlobalConfiguration.loadLegacyYAMLResource`, `YamlParserUtils`).
            is_legacy = location.name == _LEGACY_FILE
            content = parse_yaml(read_file(location, most=MOST_TEXT).decode(), allow_repeated_keys=is_legacy)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UsageError(f"the configuration of Flink is not YAML: {error}") from None
        if content is not None and not isinstance(content, dict):
            raise UsageError("the configuration of Flink is not a mapping of options")
        return dict(flatten_options(content or {}))


def flatten_options(content: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each option with its full key, whether it is written flat or nested."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from flatten_options(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def parse_duration(value: Any, key: str) -> timedelta:
    """Parse a duration as `TimeUtils.parseDuration` does; a number alone is in milliseconds.

    Args:
        value: the value, such as `10 min`, `500ms` or 500.
        key: key of the option, for the error.

    Raises:
        UsageError: the value is no duration.
    """
    match = _DURATION.fullmatch(str(value).strip())
    unit = match and _UNITS.get(match[2].lower())
    if match is None or unit is None:
        raise UsageError(f"{key} is {value!r}, not a duration", hint="Write a duration, such as 30 s or 5 min")
    try:
        return int(match[1]) * unit
    except (OverflowError, ValueError):
        # The duration has more days than `timedelta` can hold, or more digits than `int` parses.
        raise UsageError(f"{key} is {value!r:.80}, which is too long", hint="Write a shorter duration") from None


def _find(options: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((options[key] for key in keys if options.get(key) is not None), None)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _find_duration(options: Mapping[str, Any], keys: tuple[str, ...]) -> timedelta | None:
    value = _find(options, keys)
    return None if value is None else parse_duration(value, keys[0])


def parse_release(target: str) -> tuple[int, int]:
    """Return (major, minor) of a release of Flink.

    Raises:
        UsageError: the text is no release.
    """
    release = _RELEASE.fullmatch(target)
    if release is None:
        raise UsageError(f"{target!r} is not a release of Flink", hint="Such as 1.20 or 2.2")
    return int(release[1]), int(release[2])
