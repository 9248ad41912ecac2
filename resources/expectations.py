"""Proofs: how the judgements of Great Expectations become the check results of Dagster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.spark import ProofCheck, ProofReport


class ExpectationsResource(dg.ConfigurableResource["ExpectationsResource"]):
    """How proofs are shown."""

    sample_size: int = Field(default=10, ge=0, description="Offending rows that a failed check shows at most.")

    def report(self, proof: ProofReport, asset: dg.AssetKey) -> Iterator[dg.AssetCheckResult]:
        """One result per check of a proof, with what was expected, what was seen and a sample of what failed."""
        for check in proof.checks:
            yield dg.AssetCheckResult(
                asset_key=asset,
                check_name=check.name,
                passed=check.ok,
                severity=dg.AssetCheckSeverity.ERROR,
                description=check.description,
                metadata=self._describe(check),
            )

    def _describe(self, check: ProofCheck) -> dict[str, dg.MetadataValue]:
        sample = [json.dumps(row, ensure_ascii=False, default=str) for row in check.sample[: self.sample_size]]
        metadata: dict[str, dg.MetadataValue] = {
            "expectation": dg.MetadataValue.text(check.expectation),
            "expected": dg.MetadataValue.text(str(check.expected)),
            "observed": dg.MetadataValue.text(str(check.observed)),
        }
        if sample:
            metadata["sample"] = dg.MetadataValue.md("\n".join(["```json", *sample, "```"]))
        return metadata
