"""Metadata of assets, and results of checks: tables, lists of texts, and proofs evaluated by Great Expectations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import dagster as dg
from pydantic import ConfigDict, Field

from state_pipelines.operations.proofs import arrange_rows
from state_pipelines.snapshot.representation import escape_markdown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state_pipelines.operations.proofs import ProofCheck, ProofReport

Cell: TypeAlias = str | int | float | bool | None

_TEN_SECONDS = 10
_CENT = 0.01


_WIDE = 6
"""Number of columns of a table beyond which the UI cuts it at the right."""

_NUMBERS = ("int", "float")


def make_table(
    columns: Sequence[dg.TableColumn], rows: Iterable[Sequence[Cell]], *, identity: int = 2
) -> dg.TableMetadataValue:
    """Make a table; each row has the values of the columns, in their order.

    A wide table shows numbers before texts, because the UI cuts it at the right.

    Args:
        columns: the columns.
        rows: values by row.
        identity: number of leading columns that name a row; they stay the first ones.
    """
    names = [each.name for each in columns]
    records = [dg.TableRecord(dict(zip(names, row, strict=True))) for row in rows]
    shown = list(columns)
    if len(columns) > _WIDE:
        shown[identity:] = sorted(shown[identity:], key=lambda column: column.type not in _NUMBERS)
    return dg.MetadataValue.table(records, dg.TableSchema(shown))


def list_texts(texts: Iterable[str], bullet: str = "-") -> dg.MarkdownMetadataValue:
    """Make a list of texts in Markdown, which shows them as they are."""
    return dg.MetadataValue.md("\n".join(f"{bullet} {escape_markdown(text)}" for text in texts))


def expect_none(
    name: str,
    observed: int,
    details: Mapping[str, Any] | None = None,
    *,
    asset: dg.AssetKey | None = None,
    is_error: bool = False,
) -> dg.AssetCheckResult:
    """Return the result of a check that passes if the number of its findings is zero.

    Args:
        name: of the check.
        observed: number of findings.
        details: further metadata.
        asset: key of the asset; not needed in the results of its materialisation.
        is_error: whether it is an error; by default, a warning.
    """
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=name,
        passed=not observed,
        severity=dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN,
        metadata={"expected": 0, "observed": observed, **(details or {})},
    )


def to_evaluation(result: dg.AssetCheckResult, asset: dg.AssetKey) -> dg.AssetCheckEvaluation:
    """Return the event of a check that is reported without a run."""
    return dg.AssetCheckEvaluation(
        asset,
        str(result.check_name),
        result.passed,
        result.metadata,
        severity=result.severity,
        description=result.description,
    )


def round_seconds(seconds: float) -> float:
    """Round a duration for people: to hundredths of a second, from ten seconds on to tenths."""
    return round(seconds, 1 if seconds >= _TEN_SECONDS else 2)


def round_money(amount: float) -> float:
    """Round an amount of money for people: to two decimals, or to two significant digits if it is below a cent."""
    if abs(amount) >= _CENT or not amount:
        return round(amount, 2)
    return float(f"{amount:.1e}")


class ExpectationsResource(dg.ConfigurableResource["ExpectationsResource"]):
    """Settings for the check results of proofs."""

    model_config = ConfigDict(extra="forbid")

    sample_size: int = Field(
        default=10, ge=0, description="Maximal number of differing records that a failed check shows."
    )

    def judge(
        self, proof: ProofReport, asset: dg.AssetKey, *, data_docs: str | None = None, title: str = ""
    ) -> Iterator[dg.AssetCheckResult]:
        """Return the check results of a proof, with its numbers validated by a suite of Great Expectations.

        Args:
            proof: the proof.
            asset: the asset of the checks; the suite is named after it.
            data_docs: directory for validation results and data docs; None for none.
            title: name of the run in data docs.
        """
        from state_pipelines.spark.expectations import judge_report  # Importing it takes seconds.

        name = asset.to_user_string().replace("/", ".")
        yield from self.report(proof, asset, judge_report(proof, name, project=data_docs, title=title))

    def report(
        self, proof: ProofReport, asset: dg.AssetKey, unmet: Mapping[str, Sequence[str]] | None = None
    ) -> Iterator[dg.AssetCheckResult]:
        """Return one result per check of a proof, with its numbers and a table of differing records.

        Args:
            proof: the proof.
            asset: the asset of the checks.
            unmet: failed expectations by check name.
        """
        for check in proof.checks:
            yield dg.AssetCheckResult(
                asset_key=asset,
                check_name=check.name,
                passed=check.ok and not (unmet or {}).get(check.name),
                severity=dg.AssetCheckSeverity.ERROR if check.blocking else dg.AssetCheckSeverity.WARN,
                description=check.description,
                metadata=self._describe(check),
            )

    def _describe(self, check: ProofCheck) -> dict[str, dg.MetadataValue]:
        metadata: dict[str, dg.MetadataValue] = {
            "expected": dg.MetadataValue.text(check.expected),
            "observed": dg.MetadataValue.text(check.observed),
        }
        if check.counts is not None:
            metadata |= {name: dg.MetadataValue.int(number) for name, number in check.counts.to_numbers().items()}
        if rows := check.rows[: self.sample_size]:
            columns, cells = arrange_rows(rows)
            metadata["rows"] = make_table([dg.TableColumn(name) for name in columns], cells)
        return metadata


def describe_numbers(proof: ProofReport | None) -> dict[str, dg.MetadataValue]:
    """Return the numbers of a proof as metadata of an asset, which Dagster plots."""
    numbers = {} if proof is None else proof.numbers
    return {
        f"proof {name}": dg.MetadataValue.int(each) if isinstance(each, int) else dg.MetadataValue.float(each)
        for name, each in numbers.items()
    }
