"""`check`: what happens to operators and states, and the report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.operations.check.check import (
    Action,
    CheckReport,
    CheckVerdict,
    StateCheck,
    check,
    check_jobs,
    check_migration,
    check_serializers,
)
from state_pipelines.operations.jobs.job_state import JobDescription, JobOperator, JobState, Subject, describe_job
from state_pipelines.operations.migration import load_migration
from state_pipelines.serializers import build
from state_pipelines.serializers.compatibility import Outcome
from state_pipelines.serializers.text import parse
from state_pipelines.serializers.tree import Opaque, Serializer, StateKind
from state_pipelines.snapshot import Snapshot, open_snapshot

EXAMPLE = Path(__file__).parents[2] / "examples" / "orders"
ADDED, PLAIN = "Pojo<P>(a: Long, b: Long)", "Pojo<P>(a: Long)"


def state(name: str = "s", kind: str = "VALUE", value: str | Serializer = "Long") -> JobState:
    serializer = parse(value) if isinstance(value, str) else value
    match kind:
        case "SPLIT_DISTRIBUTE" | "UNION":
            return JobState(name, StateKind(kind), {Subject.ELEMENT: serializer})
        case "BROADCAST":
            return JobState(
                name, StateKind(kind), {Subject.MAP_KEY: build.basic("String"), Subject.MAP_VALUE: serializer}
            )
        case "TIMER":
            return JobState(name, StateKind(kind), {Subject.TIMER: serializer})
        case _:
            return JobState(name, StateKind(kind), {Subject.NAMESPACE: build.VOID_NAMESPACE, Subject.VALUE: serializer})


OPERATOR = JobOperator(
    id="0" * 31 + "1",
    label="orders",
    parallelism=2,
    max_parallelism=128,
    key=build.basic("String"),
    states=(state(),),
)


def job(*operators: JobOperator) -> JobDescription:
    return JobDescription("job", operators or (OPERATOR,))


def with_states(*states: JobState) -> JobDescription:
    return job(replace(OPERATOR, states=states))


def worst(report: CheckReport) -> StateCheck:
    order = list(Outcome)
    return max(report.checks, key=lambda each: (order.index(each.outcome), each.partial))


@pytest.mark.parametrize(("target", "backend"), [("newest", None), ("2", None), ("2.2", "disk")])
def test_releases_and_backends_are_known(target: str, backend: str | None) -> None:
    with pytest.raises(UsageError, match="is not a"):
        check_jobs(job(), job(), target=target, backend=backend)


def test_the_same_job_is_fully_compatible() -> None:
    report = check_jobs(job(), job())
    assert report.verdict is CheckVerdict.FULLY_COMPATIBLE
    assert report.ok
    assert [each.subject for each in report.checks] == [Subject.KEY, Subject.NAMESPACE, Subject.VALUE]


def test_a_missing_operator_is_refused() -> None:
    found = worst(report := check_jobs(job(), JobDescription("new", ())))
    assert report.verdict is CheckVerdict.INCOMPATIBLE
    assert found.action is Action.CHANGE_JOB
    assert f"Cannot map checkpoint/savepoint state for operator {OPERATOR.id} to the new program" in found.error
    assert "--allowNonRestoredState" in found.remedy


def test_a_missing_operator_is_dropped_when_that_is_allowed() -> None:
    found = worst(report := check_jobs(job(), JobDescription("new", ()), allow_non_restored_state=True))
    assert report.verdict is CheckVerdict.PARTIALLY_COMPATIBLE
    assert (found.partial, found.error) == (True, "")


def test_a_missing_operator_without_state_is_skipped() -> None:
    stateless = replace(OPERATOR, states=(), has_state=False)
    assert check_jobs(job(stateless), JobDescription("new", ())).checks == ()


def test_a_new_operator_starts_empty() -> None:
    found = worst(report := check_jobs(JobDescription("old", ()), job()))
    assert report.verdict is CheckVerdict.PARTIALLY_COMPATIBLE
    assert "starts empty" in found.reason


def test_a_missing_state_is_carried_along() -> None:
    found = worst(report := check_jobs(with_states(state("s"), state("t")), with_states(state("s"))))
    assert report.verdict is CheckVerdict.PARTIALLY_COMPATIBLE
    assert (found.state, found.subject) == ("t", Subject.STATE)
    assert "carries it along" in found.reason


def test_keyed_state_of_an_operator_without_keys_is_dropped() -> None:
    found = worst(check_jobs(job(), job(replace(OPERATOR, key=None, states=()))))
    assert "drops" in found.reason


def test_a_new_state_starts_empty() -> None:
    found = worst(report := check_jobs(with_states(state("s")), with_states(state("s"), state("t"))))
    assert report.verdict is CheckVerdict.PARTIALLY_COMPATIBLE
    assert (found.state, found.outcome) == ("t", Outcome.AS_IS)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("VALUE", "REDUCING", "Incompatible key/value state types. Was [VALUE], registered with [REDUCING]."),
        (
            "SPLIT_DISTRIBUTE",
            "UNION",
            "Incompatible state assignment modes. Was [SPLIT_DISTRIBUTE], registered with [UNION].",
        ),
    ],
)
def test_a_state_keeps_its_kind(old: str, new: str, error: str) -> None:
    found = worst(check_jobs(with_states(state(kind=old)), with_states(state(kind=new))))
    assert (found.outcome, found.error) == (Outcome.INCOMPATIBLE, error)


def test_list_and_broadcast_states_of_one_name_are_two_states() -> None:
    report = check_jobs(with_states(state(kind="UNION")), with_states(state(kind="BROADCAST")))
    assert report.verdict is CheckVerdict.PARTIALLY_COMPATIBLE


@pytest.mark.parametrize(
    ("parallelism", "max_parallelism", "expected"),
    [
        (2, 128, Outcome.AS_IS),
        (100, 256, Outcome.AS_IS),
        (2, 256, Outcome.INCOMPATIBLE),
        (200, 512, Outcome.INCOMPATIBLE),
    ],
)
def test_max_parallelism_is_part_of_the_state(parallelism: int, max_parallelism: int, expected: Outcome) -> None:
    new = replace(OPERATOR, parallelism=parallelism, max_parallelism=max_parallelism)
    assert worst(check_jobs(job(), job(new))).outcome is expected


def test_a_max_parallelism_that_the_program_sets_is_not_flinks_choice() -> None:
    new = replace(OPERATOR, parallelism=100, max_parallelism=256, sets_max_parallelism=True)
    assert worst(check_jobs(job(), job(new))).outcome is Outcome.INCOMPATIBLE


def test_a_parallelism_above_the_max_parallelism_is_refused_with_the_same_max_parallelism() -> None:
    found = worst(check_jobs(job(), job(replace(OPERATOR, parallelism=129))))
    assert found.outcome is Outcome.INCOMPATIBLE
    assert "Please reduce the parallelism" in found.error


def test_a_max_parallelism_that_the_job_sets_is_refused_in_flinks_words() -> None:
    found = worst(check_jobs(job(), job(replace(OPERATOR, max_parallelism=256))))
    assert "with max parallelism 128 to new program with max parallelism 256" in found.error


def test_state_that_cannot_be_read_leaves_the_verdict_open() -> None:
    unread = replace(OPERATOR, states=(), key=None, unread="keyed state in a Foo is not covered yet")
    report = check_jobs(job(unread), job())
    assert report.verdict is CheckVerdict.TO_BE_DETERMINED
    assert not report.ok


def test_an_unknown_serializer_leaves_the_verdict_open() -> None:
    opaque = Opaque(snapshot_class="com.acme.S", unknown_class="com.acme.S", raw=b"1")
    sides = (with_states(state(value=each)) for each in (opaque, replace(opaque, raw=b"2")))
    assert check_jobs(*sides).verdict is CheckVerdict.TO_BE_DETERMINED


def test_incompatible_wins_over_an_open_verdict() -> None:
    unread = replace(OPERATOR, id="f" * 32, unread="why")
    report = check_jobs(job(OPERATOR, unread), job(replace(OPERATOR, states=(state(value="Double"),)), unread))
    assert report.verdict is CheckVerdict.INCOMPATIBLE


def test_values_that_are_lost_make_it_partial() -> None:
    report = check_jobs(with_states(state(value=ADDED)), with_states(state(value=PLAIN)))
    assert report.verdict is CheckVerdict.PARTIALLY_COMPATIBLE


def test_added_fields_leave_it_full() -> None:
    report = check_jobs(with_states(state(value=PLAIN)), with_states(state(value=ADDED)))
    assert report.verdict is CheckVerdict.FULLY_COMPATIBLE


@pytest.mark.parametrize(
    ("version", "target", "expected"),
    [
        (6, "2.2", CheckVerdict.FULLY_COMPATIBLE),
        (6, "1.20", CheckVerdict.INCOMPATIBLE),
        (4, "1.20", CheckVerdict.FULLY_COMPATIBLE),
        (4, "1.15", CheckVerdict.INCOMPATIBLE),
        (3, "2.2", CheckVerdict.FULLY_COMPATIBLE),
        (6, "2.3", CheckVerdict.FULLY_COMPATIBLE),
        (7, "2.3", CheckVerdict.INCOMPATIBLE),
        (7, "2.4", CheckVerdict.FULLY_COMPATIBLE),
    ],
)
def test_a_release_reads_metadata_up_to_its_own(version: int, target: str, expected: CheckVerdict) -> None:
    assert check_jobs(replace(job(), metadata_version=version), job(), target=target).verdict is expected


def test_a_new_job_of_another_major_release_is_noted() -> None:
    assert check_jobs(job(), replace(job(), kryo_version=2), target="2.2").notes
    assert not check_jobs(job(), replace(job(), kryo_version=5), target="2.2").notes


# The report


def test_the_report_is_json() -> None:
    report = check_jobs(with_states(state(value="Long")), with_states(state(value="Double")))
    content = json.loads(json.dumps(report.to_json()))
    assert content["verdict"] == "incompatible"
    assert content["checks"][-1]["findings"][0]["path"] == "value"


def test_the_report_names_both_serializers() -> None:
    report = check_jobs(with_states(state(value="Long")), with_states(state(value="Double")))
    assert (worst(report).old, worst(report).new) == ("Long", "Double")


def test_the_report_of_a_compatible_job_is_folded() -> None:
    lines = check_jobs(job(), job()).to_markdown().splitlines()
    assert lines[6:8] == ["<details>", "<summary>restored as they are: 3</summary>"]
    assert lines[-1] == "</details>"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("Long", "Long", Action.NOTHING),
        ("Long", "Double", Action.MIGRATE),
        (PLAIN, ADDED, Action.FLINK_MIGRATES),
        (ADDED, PLAIN, Action.LOOK),
        ("Enum<E>(A)", "Enum<E>(A, B)", Action.RECONFIGURED),
    ],
)
def test_the_report_says_who_has_to_do_something(old: str, new: str, expected: Action) -> None:
    assert check_jobs(with_states(state(value=old)), with_states(state(value=new))).checks[-1].action is expected


def test_keys_are_beyond_help() -> None:
    report = check_jobs(job(), job(replace(OPERATOR, key=build.basic("Long"))))
    assert worst(report).action is Action.IMPOSSIBLE


def test_the_report_is_markdown() -> None:
    report = check_jobs(with_states(state(name="a|b")), with_states(state(name="a|b", value="Double")))
    lines = report.to_markdown().splitlines()
    assert lines[0] == "## State compatibility: incompatible"
    assert "| orders | a&#124;b | VALUE | value | **incompatible** | needs our migration |" in lines
    assert "- `value` `Long` → `Double`: LongSerializer became DoubleSerializer; " in "\n".join(lines)
    assert any(line.startswith("Flink: `The new state serializer (Double) must not be incompatible") for line in lines)


# Snapshots that Flink wrote


@pytest.fixture(params=["flink-1.20", "flink-2.2"])
def orders(request: pytest.FixtureRequest) -> Snapshot:
    (directory,) = (EXAMPLE / "savepoints" / request.param).glob("savepoint-*")
    return open_snapshot(str(directory), uids=["orders", "pricing"])


def test_a_snapshot_restores_in_its_own_job(orders: Snapshot) -> None:
    report = check(orders, orders, target="2.2" if orders.kryo_version == 5 else "1.20")
    assert report.verdict is CheckVerdict.FULLY_COMPATIBLE
    assert {each.operator for each in report.checks} >= {"orders", "pricing"}


def test_the_old_orders_do_not_fit_the_new_class(orders: Snapshot) -> None:
    report = check_migration(orders, load_migration(EXAMPLE / "migrations" / "0001_amount_as_double.yaml"))
    assert report.verdict is CheckVerdict.INCOMPATIBLE
    found = worst(report.unmigrated)
    assert (found.operator, found.state, found.subject) == ("orders", "order", Subject.VALUE)
    outcomes = {finding.path: (finding.old, finding.new, finding.outcome) for finding in found.findings}
    assert outcomes == {
        "value.amount": ("Long", "Double", Outcome.INCOMPATIBLE),
        "value.customer": ("String", None, Outcome.AFTER_MIGRATION),
        "value.note": ("String", None, Outcome.AFTER_MIGRATION),
        "value.customerId": (None, "String", Outcome.AFTER_MIGRATION),
        "value.priority": (None, "Int", Outcome.AFTER_MIGRATION),
    }
    assert "must not be incompatible" in found.error


def test_the_migrated_orders_fit_the_new_class(orders: Snapshot) -> None:
    report = check_migration(orders, load_migration(EXAMPLE / "migrations" / "0001_amount_as_double.yaml"))
    assert report.ok
    assert report.migrated.verdict is CheckVerdict.FULLY_COMPATIBLE
    assert "With the migration" in report.to_markdown()
    json.dumps(report.to_json())


def test_the_new_orders_do_not_fit_the_old_class(orders: Snapshot) -> None:
    old = describe_job(orders)
    operator = next(each for each in old.operators if each.label == "orders")
    order = next(each for each in operator.states if each.name == "order")
    evolved = order.serializers[Subject.VALUE]
    amount = parse("Pojo<com.acme.orders.Order>(amount: Double, customerId: String)")
    (back,) = check_serializers("orders", "order", {Subject.VALUE: amount}, {Subject.VALUE: evolved})
    assert ("value.amount", Outcome.INCOMPATIBLE) in [(each.path, each.outcome) for each in back.findings]


def test_orders_of_flink_1_restore_in_flink_2() -> None:
    old, new = (
        open_snapshot(str(next((EXAMPLE / "savepoints" / release).glob("savepoint-*"))))
        for release in ("flink-1.20", "flink-2.2")
    )
    assert check(old, new).verdict is CheckVerdict.FULLY_COMPATIBLE
    assert check(new, old, target="1.20").verdict is CheckVerdict.INCOMPATIBLE
