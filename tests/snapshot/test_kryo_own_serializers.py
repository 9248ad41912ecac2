"""A savepoint of Flink 1.20.5 whose values Kryo serializers of their own wrote."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING

import pytest

from state_pipelines.codecs.json import dumps
from state_pipelines.operations.dump import dump
from state_pipelines.snapshot import open_snapshot
from tests.codecs.test_kryo_own_serializers import DECLARED

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def savepoint(wild: Path) -> Path:
    (found,) = (wild / "classic-examples").glob("savepoint-*")
    return found


@pytest.mark.parametrize(("state", "name"), [("legacy", "Legacy"), ("legacy2", "Legacy2")])
def test_objects_of_java_serializers_are_dumped_by_their_fields(savepoint: Path, state: str, name: str) -> None:
    lines = [json.loads(dumps(line)) for line in dump(open_snapshot(str(savepoint)), state=state)]
    values = {line["key"]: line["value"] for line in lines if line["kind"] == "keyed"}
    assert values == {f"k{n}": {"@class": f"SeedJob${name}", "a": n, "b": f"k{n}"} for n in range(20)}


def test_a_serializer_of_the_user_is_named(savepoint: Path) -> None:
    lines = [json.loads(dumps(line)) for line in dump(open_snapshot(str(savepoint)), state="msg")]
    reasons = {line["value"]["@reason"] for line in lines if line["kind"] == "keyed"}
    assert all("was written by SeedJob$MsgSer" in reason for reason in reasons)
    assert len(reasons) == 1


def test_declared_messages_go_to_other_processes() -> None:
    again = pickle.loads(pickle.dumps(DECLARED))
    assert again == DECLARED
    assert again.knows("protobuf", "com.google.protobuf.Timestamp")
