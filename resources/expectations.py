"""`expectations`: judges proofs by Great Expectations. The class is in `state_pipelines/dagster/metadata_values.py`."""

from __future__ import annotations

import os

from state_pipelines.dagster import ExpectationsResource

EXPECTATIONS = ExpectationsResource(sample_size=int(os.environ.get("STATE_PIPELINES_SAMPLE_SIZE") or 10))
