"""Every snapshot of Flink, rescaled and converted: all entries are there again, and a dry run says the same before."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import StateError
from state_pipelines.operations.convert import convert
from state_pipelines.operations.dump import dump
from state_pipelines.operations.rescale import parse_request, plan_rescale, rehearse, run_rescale
from state_pipelines.operations.write.keyed_rewrite import Format
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import resolve
from tests.operations.rescaling.test_rescaling import Entries, gather
from tests.snapshots import LARGE, MADE, OWN, RESCALING, Case

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from state_pipelines.snapshot import Snapshot

CASES = [case for case in [*OWN, *RESCALING, *MADE] if not case.drained]
FORMATS = [each.value for each in Format]
UNDESCRIBED = [case for case in [*OWN, *MADE] if case.drained or case in MADE or "types-2.2" in case.name]
"""Snapshots with records in flight, and with classes that they do not describe."""


def pair(cases: Iterable[Case], values: Sequence[str]) -> list[Any]:
    """Parameters of tests: each snapshot with one value; those of a format take turns with the values."""
    turns: dict[str, int] = {}
    found = []
    for case in cases:
        turn = turns.setdefault(case.format, len(turns))
        value = values[turn % len(values)]
        turns[case.format] = turn + 1
        found.append(pytest.param(case, value, id=f"{case}-{value}"))
    return found


SMALL = [case for number, case in enumerate(case for case in CASES if case not in MADE) if number % 2 == 0]
"""Every second one; `tests.operations.rescaling.test_rescaling` changes both numbers of all of them."""


@cache
def entries_of(name: str) -> Entries:
    return gather(dump(next(each for each in CASES if each.name == name).open_told()))


def make_request(snapshot: Snapshot, name: str) -> dict[str, Any]:
    most = max(each.max_parallelism for each in snapshot.operators)
    return {
        "parallelism": {"parallelism": 7},
        "max-parallelism": {"max_parallelism": most + 123},
        "fewer-key-groups": {"max_parallelism": most // 2},
    }[name]


# `test_what_a_dry_run_accepts_the_run_does` rescales all larger ones, with the proof of the library.
@pytest.mark.parametrize(
    ("case", "request_name"), [*pair(SMALL, ["parallelism"]), *pair(LARGE, ["parallelism", "max-parallelism"])]
)
def test_every_snapshot_is_rescaled(case: Case, request_name: str, tmp_path: Path) -> None:
    snapshot = case.open_told()
    content = make_request(snapshot, request_name)
    plan = plan_rescale(snapshot, resolve(str(tmp_path / "new")), parse_request(content))
    rehearse(plan)
    assert not (tmp_path / "new").exists()
    new = open_snapshot(run_rescale(plan).path, snapshot.declarations)
    assert gather(dump(new)) == entries_of(case.name)
    for operator in new.operators:
        if operator.max_parallelism != 1 and not operator.metadata.fully_finished:
            assert operator.parallelism == content.get("parallelism", operator.parallelism)
            assert operator.max_parallelism == content.get("max_parallelism", operator.max_parallelism)


# Those of this tree are converted by `tests.operations.test_converting`.
@pytest.mark.parametrize(("case", "format"), pair(LARGE, FORMATS))
def test_every_snapshot_is_converted(case: Case, format: str, tmp_path: Path) -> None:
    snapshot = case.open_told()
    target = str(tmp_path / "new")
    result = convert(snapshot, target, format)
    assert gather(dump(open_snapshot(result.path, snapshot.declarations))) == entries_of(case.name)


@pytest.mark.parametrize(("case", "request_name"), pair(UNDESCRIBED, ["parallelism", "fewer-key-groups"]))
def test_what_a_dry_run_accepts_the_run_does(case: Case, request_name: str, tmp_path: Path) -> None:
    """Without the declarations of `open_told`: some snapshots hold classes that they do not describe."""
    snapshot = case.open()
    request = parse_request(make_request(snapshot, request_name))
    try:
        plan = plan_rescale(snapshot, resolve(str(tmp_path / "new")), request)
        rehearse(plan)
    except StateError as refusal:
        assert not (tmp_path / "new").exists()
        try:
            plan = plan_rescale(snapshot, resolve(str(tmp_path / "new")), request)
            with pytest.raises(type(refusal)):
                run_rescale(plan)
        except type(refusal):
            pass
        assert not (tmp_path / "new").exists()
        return
    proof = run_rescale(plan).proof
    assert proof is not None
    assert proof.ok


WILD = [
    "TouK+nussknacker/2022-06-02-scala2.12-723d8ee9",
    "TouK+nussknacker/2024-02-29-2.12-dcc3c22a",
    "apache+flink-connector-kafka/enum2-split0",
    "classic-examples",
    "gimral+flink-state-offset-translator/494ff033-chk-6",
    "older-ranges",
    "pyflink-2.2.1",
]


@pytest.mark.parametrize("request_name", ["parallelism", "max-parallelism"])
@pytest.mark.parametrize("name", WILD)
def test_snapshots_of_other_projects_are_rescaled(wild: Path, name: str, request_name: str, tmp_path: Path) -> None:
    """Unknown serializers, exactly-once sinks and legacy sources included: nothing of operator state is decoded."""
    (metadata,) = (wild / name).rglob("_metadata")
    snapshot = open_snapshot(str(metadata.parent))
    plan = plan_rescale(snapshot, resolve(str(tmp_path / "new")), parse_request(make_request(snapshot, request_name)))
    rehearse(plan)
    result = run_rescale(plan)
    assert result.proof is not None
    assert result.proof.ok
    assert sum(row.after.records for row in result.states) > 0
