"""What a proof found: its checks, for people and for machines."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from state_pipelines.spark.expectations import SAMPLE_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

ROW_COUNTS = "row_counts_per_key_group"
KEY_SETS = "key_sets"
KEY_HASHES = "key_groups_match_key_hash"
ROUND_TRIP = "round_trip"
READ_BACK = "written_reads_back"
OWN = "own_expectations"

CHECK_NAMES = (ROW_COUNTS, KEY_SETS, KEY_HASHES, ROUND_TRIP, READ_BACK)
"""The checks of every proof; `OWN` comes to those of migrations that have expectations of their own."""


DESCRIPTIONS = {
    ROW_COUNTS: "every key group has as many records as before",
    KEY_SETS: "the keys are the same as before, none lost and none doubled",
    KEY_HASHES: "every key lies in the key group that its hash gives",
    ROUND_TRIP: "upgrade, then downgrade, gives the original values",
    READ_BACK: "what was written reads back as what was meant",
    OWN: "the rows of the new state are as the migration expects",
}
"""What each says."""


# As Markdown wants it inside of a table.
_PIPE = r"\|"


@dataclass(frozen=True)
class ProofCheck:
    """One property that was judged.

    Attributes:
        name: one of `CHECK_NAMES`, or `OWN`.
        ok: whether it holds.
        description: what it says.
        expectation: the expectations that judged it.
        expected: what was expected.
        observed: what was seen.
        sample: some of what failed.
    """

    name: str
    ok: bool
    description: str
    expectation: str
    expected: str
    observed: str
    sample: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class ProofReport:
    """All checks of one change.

    Attributes:
        operator: label of the operator.
        state: name of the new state; several, separated by commas.
        rows: records afterwards.
        key_groups: key groups that have any; 0 of operator state.
    """

    operator: str
    state: str
    rows: int
    key_groups: int
    checks: tuple[ProofCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(check.ok for check in self.checks)

    def to_markdown(self) -> str:
        """A table for people."""
        place = f" in {self.key_groups} key groups" if self.key_groups else ""
        lines = [
            f"**{self.operator} / {self.state}**: {self.rows} records{place}",
            "",
            "| check | result | what it says | observed |",
            "|---|---|---|---|",
        ]
        for check in self.checks:
            result = "passed" if check.ok else "**FAILED**"
            cells = (check.name, result, check.description, check.observed)
            lines.append(f"| {' | '.join(each.replace('|', _PIPE) for each in cells)} |")
        for check in self.checks:
            if check.sample:
                rows = [json.dumps(row, ensure_ascii=False, default=str) for row in check.sample]
                lines += ["", f"{check.name}:", "", "```json", *rows, "```"]
        return "\n".join(lines)


def combine_reports(reports: Sequence[ProofReport]) -> ProofReport:
    """One report of several: a check holds when it holds in each."""
    if len(reports) == 1:
        return reports[0]
    names = dict.fromkeys(check.name for report in reports for check in report.checks)
    checks = []
    for name in names:
        found = [(report, check) for report in reports for check in report.checks if check.name == name]
        observed = "; ".join(f"{report.state}: {check.observed}" for report, check in found)
        descriptions = dict.fromkeys(check.description for _, check in found)
        checks.append(
            replace(
                found[0][1],
                ok=all(check.ok for _, check in found),
                description="; ".join(descriptions),
                observed=observed,
                sample=[{"state": report.state, **row} for report, check in found for row in check.sample][
                    :SAMPLE_SIZE
                ],
            )
        )
    return ProofReport(
        operator=", ".join(dict.fromkeys(report.operator for report in reports)),
        state=", ".join(dict.fromkeys(report.state for report in reports)),
        rows=sum(report.rows for report in reports),
        key_groups=max(report.key_groups for report in reports),
        checks=tuple(checks),
    )
