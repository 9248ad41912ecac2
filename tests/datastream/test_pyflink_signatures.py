"""Public names that PyFlink has too have PyFlink's parameters.

`pyflink-2.2.1.txt` lists the methods of classes of `pyflink.common` and `pyflink.datastream` 2.2.1, without those that
return objects of Java.
"""

from __future__ import annotations

import inspect
import re
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from state_pipelines import datastream

LINES = Path(__file__).with_name("pyflink-2.2.1.txt").read_text().splitlines()
ENUMS = {
    "RowKind": {"INSERT": 0, "UPDATE_BEFORE": 1, "UPDATE_AFTER": 2, "DELETE": 3},
    "TimeDomain": {"EVENT_TIME": 0, "PROCESSING_TIME": 1},
    "StateTtlConfig.UpdateType": {"Disabled": 0, "OnCreateAndWrite": 1, "OnReadAndWrite": 2},
    "StateTtlConfig.StateVisibility": {"ReturnExpiredIfNotCleanedUp": 0, "NeverReturnExpired": 1},
    "StateTtlConfig.TtlTimeCharacteristic": {"ProcessingTime": 0},
    "StateTtlConfig.CleanupStrategies.Strategies": {
        "FULL_STATE_SCAN_SNAPSHOT": 0,
        "INCREMENTAL_CLEANUP": 1,
        "ROCKSDB_COMPACTION_FILTER": 2,
    },
}


def find(name: str) -> Any:
    return reduce(getattr, name.split("."), datastream)


def list_parameters(function: Any, *, is_method: bool) -> list[str]:
    parameters = list(inspect.signature(function).parameters.values())[1 if is_method else 0 :]
    return [str(each).partition(":")[0] for each in parameters if each.kind is not each.KEYWORD_ONLY]


@pytest.mark.parametrize("line", LINES)
def test_parameters_are_those_of_pyflink(line: str) -> None:
    match = re.fullmatch(r"([\w.]+)\.(\w+)\((.*)\)", line)
    assert match
    owner, method, parameters = match.groups()
    is_method = not isinstance(inspect.getattr_static(find(owner), method), staticmethod | classmethod)
    found = list_parameters(getattr(find(owner), method), is_method=is_method)
    assert found == [each for each in parameters.split(", ") if each]


@pytest.mark.parametrize("name", ENUMS)
def test_constants_are_those_of_pyflink(name: str) -> None:
    assert {each.name: each.value for each in find(name)} == ENUMS[name]


def test_classes_are_imported_from_the_package() -> None:
    owners = {line.partition(".")[0] for line in LINES}
    assert owners <= set(dir(datastream))
