"""Snapshot classes of users: what Flink cannot make, and what it advises against."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.cli.check import show_check
from state_pipelines.cli.display import make_console
from state_pipelines.codecs.kryo.classes import JavaType
from state_pipelines.javaclasses import ClassPath, GivenClass, JavaClass, JavaMethod, Nesting, open_class_path
from state_pipelines.operations.check.check_report import CheckReport, CheckVerdict
from state_pipelines.operations.check.class_checks import judge_snapshot_classes
from state_pipelines.operations.jobs.job_state import JobDescription, JobOperator, JobState, Subject
from state_pipelines.serializers.build import VOID_NAMESPACE
from state_pipelines.serializers.compatibility import Outcome
from state_pipelines.serializers.tree import Opaque, StateKind

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.operations.check.check_report import StateCheck

NAME = "a.MoneySnapshot"
NULLARY = JavaMethod("<init>", (), "void", is_public=True)
GOOD = JavaClass(NAME, methods=(NULLARY,))


def judge(*classes: JavaClass, name: str = NAME, raw: bytes = b"") -> list[StateCheck]:
    node = Opaque(unknown_class=name, snapshot_class=name, snapshot_version=1, raw=raw)
    state = JobState("s", StateKind.VALUE, {Subject.NAMESPACE: VOID_NAMESPACE, Subject.VALUE: node})
    job = JobDescription("job", (JobOperator("0" * 32, "op", 1, 128, None, (state, replace(state, name="t"))),))
    return list(judge_snapshot_classes(job, ClassPath(tuple(map(GivenClass, classes)))))


def test_a_class_as_flink_wants_it() -> None:
    assert judge(GOOD) == []


def test_a_class_that_is_not_given() -> None:
    assert judge() == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"nesting": Nesting.ANONYMOUS}, "is an anonymous class"),
        ({"nesting": Nesting.LOCAL}, "is a local class"),
        ({"nesting": Nesting.INNER}, "is an inner class that is not static"),
        ({"is_public": False}, "is not public"),
        ({"is_abstract": True}, "is abstract"),
        ({"methods": ()}, "has no public constructor without arguments"),
        ({"methods": (JavaMethod("<init>", ("int",), "void", is_public=True),)}, "has no public constructor"),
    ],
)
def test_a_class_that_flink_cannot_make(change: dict[str, object], problem: str) -> None:
    (check,) = judge(replace(GOOD, **change))  # type: ignore[arg-type]
    assert (check.outcome, check.subject) == (Outcome.INCOMPATIBLE, Subject.SNAPSHOT_CLASS)
    assert problem in check.reason


def test_a_class_that_two_serializers_share() -> None:
    base = JavaType("org.apache.flink.api.common.typeutils.base.TypeSerializerSingleton")
    owners = [JavaClass(f"a.{each}", parent=base, creates=frozenset({NAME})) for each in ("Euro", "Dollar")]
    (check,) = judge(GOOD, *owners)
    assert check.outcome is Outcome.AS_IS
    assert "is the snapshot class of a.Dollar and a.Euro" in check.reason
    assert judge(GOOD, owners[0]) == []


def test_java_objects_inside() -> None:
    (check,) = judge(replace(GOOD, references=frozenset({"java.io.ObjectOutputStream"})))
    assert "writes Java objects" in check.reason
    (check,) = judge(GOOD, raw=bytes.fromhex("aced0005"))
    assert "consists of Java objects" in check.reason


@pytest.mark.slow
def test_nesting_and_constructors_as_javac_writes_them(tmp_path: Path) -> None:
    if shutil.which("javac") is None:
        pytest.skip("needs a JDK: there is no javac on the PATH")
    source = tmp_path / "Outer.java"
    source.write_text(
        "public class Outer { public static class Fixed {} public class Inner {} "
        "Object make() { class Local {} new Fixed(); return new Local() {}; } }"
    )
    subprocess.run(["javac", "-d", tmp_path, source], check=True)
    classes = open_class_path([tmp_path])
    names = ("Outer", "Outer$Fixed", "Outer$Inner", "Outer$1Local", "Outer$1")
    found = {name: each.nesting for name in names if (each := classes.find(name)) is not None}
    assert found == dict(zip(names, Nesting, strict=True))
    outer = classes.find("Outer")
    assert outer is not None
    assert {"Outer$Fixed", "Outer$1"} <= outer.creates


SNAPSHOT = "org.apache.flink.api.common.typeutils.TypeSerializerSnapshot"
SIMPLE = JavaType("org.apache.flink.api.common.typeutils.SimpleTypeSerializerSnapshot")


@pytest.mark.parametrize(
    "change",
    [{"interfaces": ("java.io.Serializable", SNAPSHOT)}, {"parent": SIMPLE}, {"parent": JavaType("a.Base")}],
)
def test_snapshot_classes_that_are_in_no_snapshot_are_looked_at(change: dict[str, object]) -> None:
    base = JavaClass("a.Base", parent=SIMPLE, is_abstract=True)
    other = replace(JavaClass("a.Other", nesting=Nesting.INNER, methods=(NULLARY,)), **change)  # type: ignore[arg-type]
    (check,) = judge(GOOD, base, other)
    assert check.outcome is Outcome.AS_IS
    assert "a.Other, which this snapshot does not hold, is an inner class that is not static" in check.reason
    writing = replace(other, nesting=Nesting.TOP_LEVEL, references=frozenset({"java.io.ObjectOutputStream"}))
    assert "a.Other writes Java objects" in judge(GOOD, base, writing)[0].reason
    assert judge(GOOD, base, replace(other, nesting=Nesting.TOP_LEVEL)) == []


def test_advice_is_shown_in_every_form_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    (check,) = judge(replace(GOOD, references=frozenset({"java.io.ObjectOutputStream"})))
    report = CheckReport(old="old", new="new", target="2.2", backend=None, checks=(check,))
    assert report.verdict is CheckVerdict.FULLY_COMPATIBLE
    assert f"{NAME} writes Java objects" in report.to_markdown()
    show_check(report, make_console())
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{NAME} writes Java objects" in shown
    assert "what to do: Write names and values" in shown
