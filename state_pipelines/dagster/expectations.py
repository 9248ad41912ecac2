"""Check results of Dagster from proofs, evaluated by Great Expectations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg
from pydantic import ConfigDict, Field

from state_pipelines.dagster.metadata_values import make_table
from state_pipelines.operations.proofs import arrange_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.operations.proofs import ProofCheck, ProofReport


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
        from state_pipelines.spark.suites import judge_report  # Importing it takes seconds.

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
