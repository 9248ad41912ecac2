"""Snapshots in Spark: data sources, distributed pipelines and their proof. The only package that imports pyspark.

Nothing is imported before it is asked for: a session starts, and so do its workers, without the pipelines.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from state_pipelines.operations.bootstrap.bootstrap import BootstrapResult
    from state_pipelines.operations.bootstrap.new_states import NewOperator, NewState
    from state_pipelines.operations.proofs import ProofCheck, ProofReport
    from state_pipelines.spark.bootstrap_run import (
        Aggregate,
        bootstrap,
        collect_of,
        count_of,
        keyed_aggregate,
        last_of,
        max_of,
        min_of,
        sum_of,
    )
    from state_pipelines.spark.keyed_step import keyed_process
    from state_pipelines.spark.keyed_tasks import KeyedProcessResult, connect
    from state_pipelines.spark.micro_batches import keyed_batches
    from state_pipelines.spark.migration_run import MigrationResult, migrate
    from state_pipelines.spark.record_encoding import write_state
    from state_pipelines.spark.session import create_session, register

__all__ = [
    "Aggregate",
    "BootstrapResult",
    "KeyedProcessResult",
    "MigrationResult",
    "NewOperator",
    "NewState",
    "ProofCheck",
    "ProofReport",
    "bootstrap",
    "collect_of",
    "connect",
    "count_of",
    "create_session",
    "keyed_aggregate",
    "keyed_batches",
    "keyed_process",
    "last_of",
    "max_of",
    "migrate",
    "min_of",
    "register",
    "sum_of",
    "write_state",
]

_MODULES = {
    "BootstrapResult": "state_pipelines.operations.bootstrap.bootstrap",
    "NewOperator": "state_pipelines.operations.bootstrap.new_states",
    "NewState": "state_pipelines.operations.bootstrap.new_states",
    "bootstrap": "state_pipelines.spark.bootstrap_run",
    "Aggregate": "state_pipelines.spark.bootstrap_run",
    "collect_of": "state_pipelines.spark.bootstrap_run",
    "count_of": "state_pipelines.spark.bootstrap_run",
    "keyed_aggregate": "state_pipelines.spark.bootstrap_run",
    "last_of": "state_pipelines.spark.bootstrap_run",
    "max_of": "state_pipelines.spark.bootstrap_run",
    "min_of": "state_pipelines.spark.bootstrap_run",
    "sum_of": "state_pipelines.spark.bootstrap_run",
    "KeyedProcessResult": "state_pipelines.spark.keyed_tasks",
    "connect": "state_pipelines.spark.keyed_tasks",
    "MigrationResult": "state_pipelines.spark.migration_run",
    "ProofCheck": "state_pipelines.operations.proofs",
    "ProofReport": "state_pipelines.operations.proofs",
    "create_session": "state_pipelines.spark.session",
    "keyed_batches": "state_pipelines.spark.micro_batches",
    "keyed_process": "state_pipelines.spark.keyed_step",
    "migrate": "state_pipelines.spark.migration_run",
    "register": "state_pipelines.spark.session",
    "write_state": "state_pipelines.spark.record_encoding",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_MODULES[name]), name)
    globals()[name] = found
    return found
