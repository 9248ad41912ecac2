"""Rescaling: the same state for another parallelism, other key groups, or other operators.

For example:

    request = RescaleRequest(parallelism=6, max_parallelism=1024)
    rescale(open_snapshot("s3://bucket/savepoint-1a2b"), "s3://bucket/rescaled", request)
"""

from __future__ import annotations

from state_pipelines.operations.rescale.records import OperatorChange, RescalePlan
from state_pipelines.operations.rescale.rescale import RescaleResult, plan_rescale, rehearse, rescale, run_rescale
from state_pipelines.operations.rescale.rescale_request import (
    MergeRequest,
    OperatorRequest,
    RescaleRequest,
    TakeRequest,
    load_request,
    parse_request,
)

__all__ = [
    "MergeRequest",
    "OperatorChange",
    "OperatorRequest",
    "RescalePlan",
    "RescaleRequest",
    "RescaleResult",
    "TakeRequest",
    "load_request",
    "parse_request",
    "plan_rescale",
    "rehearse",
    "rescale",
    "run_rescale",
]
