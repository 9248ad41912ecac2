"""Our outcome is that of real Flink for every recorded pair, except for the differences that are explained."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.serializers.compatibility import Compatibility, Outcome, resolve
from state_pipelines.serializers.registry import read_snapshot, write_snapshot
from state_pipelines.serializers.tree import Serializer, SortedMapOf
from tests.serializers import custom_families  # noqa: F401  registers itself
from tests.serializers.golden_pairs import LINES, Golden, Pair, read_golden

DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"
LEAST_PAIRS = 300


@dataclass(frozen=True)
class Difference:
    """Pairs of which we say something else than Flink does.

    Attributes:
        flink: what Flink says, or `error`.
        ours: what we say.
        pairs: which; empty when they are told from what is found.
    """

    flink: str
    ours: str
    pairs: tuple[str, ...] = ()


def evolving(*names: str) -> tuple[str, ...]:
    return tuple(f"old:{name} -> new:{name}" for name in names)


SORTED = "sorted maps: keys or values"
FAMILIES = "composites of another family"
DIFFERENCES = {
    FAMILIES: Difference("AS_IS", "INCOMPATIBLE"),
    SORTED: Difference("AS_IS", "that of keys and values"),
    "sorted maps: another comparator": Difference("INCOMPATIBLE", "UNDETERMINED"),
    "sorted maps: a comparator without equals": Difference(
        "INCOMPATIBLE", "AS_IS", ("sorted-map/without-equals -> sorted-map/without-equals",)
    ),
    "POJO: a field that became transient": Difference("error", "AFTER_MIGRATION", evolving("Fields$TransientNow")),
    "POJO: a superclass that is no longer one": Difference(
        "error", "UNDETERMINED", evolving("Inherited$LosesParent", "Inherited$OtherParent")
    ),
    "POJO: a field that moved to a superclass of its class": Difference(
        "AS_IS", "UNDETERMINED", evolving("Inherited$MovedToGrandparent")
    ),
    "POJO: a field that moved from there to a subclass": Difference(
        "AFTER_MIGRATION",
        "UNDETERMINED",
        ("rewritten:Inherited$MovedToGrandparent -> old:Inherited$MovedToGrandparent",),
    ),
    "POJO: an enum lost a constant, and the field went": Difference(
        "error", "AFTER_MIGRATION", evolving("Fields$EnumRemovedWithField")
    ),
    "classes that are not on the class path": Difference(
        "INCOMPATIBLE",
        "RECONFIGURED",
        evolving("kryo/registered-is-missing-now", "not-registered/missing-now", "registered/missing-now"),
    ),
}


@dataclass(frozen=True)
class Judged:
    """A pair with both answers."""

    pair: Pair
    old: Serializer
    new: Serializer
    found: Compatibility

    @property
    def flink(self) -> str:
        """Flink's answer; `error` when it fails, or migrates but cannot restore the old serializer for that."""
        answer, restore = self.pair.answer, self.pair.restore
        return "error" if answer.startswith("!") or (restore and answer == "AFTER_MIGRATION") else answer

    @property
    def agrees(self) -> bool:
        """An error of Flink is as good as incompatible."""
        return self.found.outcome.name == self.flink.replace("error", "INCOMPATIBLE")

    @property
    def difference(self) -> str:
        """Which of the differences it is; empty when it is none of them."""
        for title, difference in DIFFERENCES.items():
            if str(self.pair).removeprefix("earlier:") in difference.pairs:
                return title
        if isinstance(self.old, SortedMapOf) and isinstance(self.new, SortedMapOf):
            return SORTED if self.old.comparator == self.new.comparator else "sorted maps: another comparator"
        return FAMILIES if self.unnoticed else ""

    @property
    def unnoticed(self) -> bool:
        """We say that Flink sees nothing."""
        decisive = [each for each in self.found.findings if each.outcome is Outcome.INCOMPATIBLE]
        return bool(decisive) and all(each.unnoticed for each in decisive)


@cache
def golden(line: str) -> Golden:
    return read_golden(line)


@cache
def judge(line: str) -> tuple[Judged, ...]:
    nodes = {name: read_snapshot(Reader(data, name)) for name, data in golden(line).snapshots.items()}
    return tuple(
        Judged(pair, nodes[pair.old], nodes[pair.new], resolve(nodes[pair.old], nodes[pair.new]))
        for pair in golden(line).pairs
    )


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_the_outcome_is_that_of_flink(line: str) -> None:
    wrong = [
        f"{each.pair}: Flink {each.pair.answer}, ours {each.found.outcome.name}"
        for each in judge(line)
        if not each.agrees and not each.difference
    ]
    assert not wrong
    assert len(judge(line)) > LEAST_PAIRS


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("title", DIFFERENCES)
def test_a_difference_is_the_one_that_is_explained(title: str, line: str) -> None:
    difference = DIFFERENCES[title]
    different = [each for each in judge(line) if not each.agrees and each.difference == title]
    assert different
    assert {each.flink for each in different} == {difference.flink}
    if title != SORTED:
        assert {each.found.outcome.name for each in different} == {difference.ours}


@pytest.mark.parametrize("line", LINES)
def test_what_flink_does_not_notice_is_what_we_say_it_does_not(line: str) -> None:
    overlooked = [each for each in judge(line) if each.unnoticed]
    assert overlooked
    assert [str(each.pair) for each in overlooked if each.agrees] == []


def test_up_to_1_20_the_old_snapshot_says_what_the_new_one_says() -> None:
    assert [pair for pair in golden("1.20").pairs if pair.answer != pair.legacy] == []


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_every_snapshot_is_written_as_flink_wrote_it(line: str) -> None:
    for name, data in golden(line).snapshots.items():
        writer = Writer()
        write_snapshot(writer, read_snapshot(Reader(data, name)))
        assert writer.getvalue() == data, name


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("outcome", ["AS_IS", "RECONFIGURED", "AFTER_MIGRATION", "INCOMPATIBLE"])
def test_users_serializers_have_all_four_outcomes(outcome: str, line: str) -> None:
    custom = [each for each in judge(line) if each.pair.old.startswith("custom") and each.agrees]
    assert any(each.flink == outcome for each in custom)


def count(line: str, title: str) -> int:
    return sum(not each.agrees and each.difference == title for each in judge(line))


@pytest.mark.slow
def test_the_documentation_lists_the_differences() -> None:
    rows = re.findall(r"^\| ([^|]+) \| (\w+) \| ([^|]+) \| (\d+) \| (\d+) \|", DOCUMENT.read_text(), re.MULTILINE)
    assert rows == [
        (title, difference.flink, difference.ours, *(str(count(line, title)) for line in LINES))
        for title, difference in DIFFERENCES.items()
    ]


def test_the_documentation_counts_the_pairs() -> None:
    text = DOCUMENT.read_text()
    for line in LINES:
        assert f"{len(golden(line).pairs):,} pairs of Flink {line}" in text
