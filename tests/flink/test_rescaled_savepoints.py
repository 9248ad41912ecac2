"""Real Flink restores what was rescaled with every entry and timer in place."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import UnsupportedError
from state_pipelines.operations.rescale import MergeRequest, OperatorRequest, RescaleRequest, TakeRequest, rescale
from tests.flink import harness, jobs
from tests.flink.rescaling import ANY_KEY_GROUP, BY_SUBTASK, OPERATORS, OTHER_REGION, Made, Maker, check, open_path

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.flink

BROADCAST = ("names", "places")
FORMATS = (("hashmap", "canonical"), ("hashmap", "native"), ("rocksdb", "native"), ("rocksdb", "checkpoint"))


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker(tmp_path_factory.mktemp("made"))


@pytest.fixture
def made(maker: Maker, version: str) -> Made:
    """A canonical savepoint."""
    return maker.make(version)


def rescale_path(source: Path, target: Path, request: RescaleRequest) -> Path:
    rescale(open_path(source), str(target), request, open_other=open_path)
    return target


def of_operators(made: Made, *uids: str) -> list[harness.Entry]:
    return [entry for entry in made.entries if entry["op"] in uids]


def but_of(made: Made, *uids: str) -> list[harness.Entry]:
    return [entry for entry in made.entries if entry["op"] not in uids]


@pytest.mark.parametrize(("backend", "kind"), FORMATS)
def test_parallelism_2_3_1_7(maker: Maker, version: str, backend: str, kind: str, tmp_path: Path) -> None:
    made = maker.make(version, backend, kind)
    path = made.path
    for parallelism in (3, 1, 7):
        path = rescale_path(path, tmp_path / str(parallelism), RescaleRequest(parallelism=parallelism))
        if kind == "canonical" or parallelism == 7:
            result = harness.restore(version, path, jobs.rescaling_job(), backend=backend, parallelism=parallelism)
            check(result, made.entries, parallelism)


@pytest.mark.parametrize(("backend", "kind"), FORMATS)
def test_max_parallelism_128_1024_96(maker: Maker, version: str, backend: str, kind: str, tmp_path: Path) -> None:
    made = maker.make(version, backend, kind)
    path = made.path
    for number in (1024, 96):
        path = rescale_path(path, tmp_path / str(number), RescaleRequest(max_parallelism=number))
        if kind == "canonical" or number == 96:
            result = harness.restore(version, path, jobs.rescaling_job(number), backend=backend)
            check(result, made.entries, 2, ANY_KEY_GROUP)


@pytest.mark.slow
def test_both_at_once(made: Made, backend: str, tmp_path: Path) -> None:
    path = made.path
    for parallelism, number in ((3, 1024), (7, 96)):
        request = RescaleRequest(parallelism=parallelism, max_parallelism=number)
        path = rescale_path(path, tmp_path / str(parallelism), request)
    result = harness.restore(made.version, path, jobs.rescaling_job(96), backend=backend, parallelism=7)

    check(result, made.entries, 7, ANY_KEY_GROUP)


def test_flink_itself_rescales_what_was_rescaled(made: Made, backend: str, tmp_path: Path) -> None:
    request = RescaleRequest(parallelism=3, max_parallelism=1024)
    path = rescale_path(made.path, tmp_path / "rescaled", request)
    result = harness.restore(made.version, path, jobs.rescaling_job(1024), backend=backend, parallelism=5)

    check(result, made.entries, 5, ANY_KEY_GROUP)


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [3, 7])
def test_operator_state_lies_where_flink_puts_it(made: Made, parallelism: int, tmp_path: Path) -> None:
    path = rescale_path(made.path, tmp_path / "rescaled", RescaleRequest(parallelism=parallelism))
    sides: list[list[harness.Entry]] = []
    for each in (made.path, path):
        result = harness.restore(made.version, each, jobs.rescaling_job(), parallelism=parallelism)
        assert result.ok, result.error
        sides.append([entry for entry in result.entries if entry["kind"] in ("operator", "broadcast")])
    difference = harness.diff_entries(sides[0], sides[1], BY_SUBTASK)

    assert not difference, str(difference)


@pytest.mark.slow
def test_way_there_and_back(made: Made, tmp_path: Path) -> None:
    steps = [(2, 128), (7, 1024), (2, 128)]
    path = made.path
    for _, (parallelism, number) in pairwise(steps):
        request = RescaleRequest(parallelism=parallelism, max_parallelism=number)
        path = rescale_path(path, tmp_path / str(number), request)
    result = harness.restore(made.version, path, jobs.rescaling_job())

    check(result, made.entries, 2)


def test_other_uids(made: Made, tmp_path: Path) -> None:
    uids = {"string": "words", "row-data": "rows", "operator-states": "lists"}
    operators = {old: OperatorRequest(uid=new) for old, new in uids.items()}
    path = rescale_path(made.path, tmp_path / "renamed", RescaleRequest(operators=operators))
    result = harness.restore(made.version, path, jobs.rescaling_job(uids=uids))

    check(result, [entry | {"op": uids.get(entry["op"], entry["op"])} for entry in made.entries], 2)


def test_dropped_operators(made: Made, tmp_path: Path) -> None:
    gone = ("string", "operator-states", "broadcasts")
    operators = {uid: OperatorRequest(drop=True) for uid in gone}
    path = rescale_path(made.path, tmp_path / "dropped", RescaleRequest(operators=operators))
    # Flink refuses a snapshot with state of an operator that the job does not have.
    job = jobs.rescaling_job(operators=[uid for uid in OPERATORS if uid not in gone])
    assert not harness.restore(made.version, made.path, job).ok
    result = harness.restore(made.version, path, job)

    check(result, but_of(made, *gone), 2)


@pytest.mark.slow
def test_dropped_states(made: Made, tmp_path: Path) -> None:
    request = RescaleRequest(
        operators={
            "string": OperatorRequest(drop_states=("map", "living")),
            "operator-states": OperatorRequest(drop_states=("few", "names")),
        }
    )
    path = rescale_path(made.path, tmp_path / "dropped", request)
    result = harness.restore(made.version, path, jobs.rescaling_job())
    gone = {("string", "map"), ("string", "living"), ("operator-states", "few"), ("operator-states", "names")}

    check(result, [entry for entry in made.entries if (entry["op"], entry.get("state")) not in gone], 2)


def test_two_regions_become_one(maker: Maker, version: str, tmp_path: Path) -> None:
    made, other = maker.make(version), maker.make(version, first=OTHER_REGION)
    # Regions that broadcast other things cannot be merged with it: a subtask holds one copy.
    different = {"operator-states": OperatorRequest(drop_states=BROADCAST)}
    plain = RescaleRequest(parallelism=3, max_parallelism=1024, merge=MergeRequest(snapshots=(str(other.path),)))
    with pytest.raises(UnsupportedError, match="different broadcast state"):
        rescale_path(made.path, tmp_path / "refused", plain)
    path = rescale_path(made.path, tmp_path / "merged", plain.model_copy(update={"operators": different}))
    result = harness.restore(version, path, jobs.rescaling_job(1024), backend="rocksdb", parallelism=3)

    both = made.entries + other.entries
    check(result, [entry for entry in both if entry.get("state") not in BROADCAST], 3, ANY_KEY_GROUP)


@pytest.mark.slow
def test_operator_of_another_snapshot(maker: Maker, version: str, tmp_path: Path) -> None:
    made, other = maker.make(version), maker.make(version, first=OTHER_REGION)
    dropped = RescaleRequest(operators={"record": OperatorRequest(drop=True)})
    path = rescale_path(made.path, tmp_path / "dropped", dropped)
    taken = RescaleRequest(take={"record": TakeRequest(snapshot=str(other.path), operator="record")})
    path = rescale_path(path, tmp_path / "taken", taken)
    result = harness.restore(version, path, jobs.rescaling_job())

    check(result, but_of(made, "record") + of_operators(other, "record"), 2)


@pytest.mark.parametrize(("uid", "keep"), [("string", True), ("long", False), ("string-windows", False)])
def test_only_some_keys(made: Made, uid: str, keep: bool, tmp_path: Path) -> None:
    keys = sorted({entry["key"] for entry in of_operators(made, uid)})[::3]
    chosen = {uid: OperatorRequest(keep_keys=tuple(keys)) if keep else OperatorRequest(drop_keys=tuple(keys))}
    path = rescale_path(made.path, tmp_path / "chosen", RescaleRequest(parallelism=3, operators=chosen))
    result = harness.restore(made.version, path, jobs.rescaling_job(), parallelism=3)

    check(result, [entry for entry in made.entries if entry["op"] != uid or (entry["key"] in keys) == keep], 3)
