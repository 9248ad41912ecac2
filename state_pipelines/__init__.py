"""Checkpoints and savepoints of Apache Flink: see, judge, change and prove them, without a Flink cluster.

    import state_pipelines as sp

    snapshot = sp.open_snapshot("s3://bucket/savepoint-1a2b")
    snapshot.operator("orders").state("order").to_arrow()
    sp.inspect(snapshot).notes
    sp.read(snapshot, "orders", "order", columns=["state_key", "value.amount"]).to_arrow()
    sp.dump(snapshot, operator="orders")
    sp.balance(snapshot, parallelism=8).operators
    sp.profile(snapshot).errors
    sp.diff(old, new)
    sp.check(old, new)
    sp.migrate(snapshot, "migrations/0001.yaml", "s3://bucket/migrated")
    sp.convert(snapshot, "s3://bucket/canonical", format="canonical")
    sp.rescale(snapshot, "s3://bucket/rescaled", max_parallelism=1024)
    sp.erase(snapshot, ["order-0001"], "s3://bucket/without")
    sp.bootstrap("s3://bucket/bootstrapped", [sp.spark.NewOperator("orders", states)])
    sp.verify(snapshot).findings
    sp.verify_all("s3://bucket/checkpoints").newest_restorable
    sp.plan_retention(["s3://bucket/checkpoints", "s3://bucket/savepoints"])
    sp.status("orders.yaml").findings
    sp.upgrade("JOB.yaml", plan_only=True).plan
    sp.rehearse("JOB.yaml").down_time
    sp.savepoint("JOB.yaml", format="native")
    sp.spark.register(spark)
    sp.sql.list_operators(sp.sql.load_plan("plan.json"))

Operations take a snapshot or its path. They have the names of the commands of `state-pipelines`; `balance` and
`profile` are the options `--balance` and `--profile` of the command `inspect`, and `plan_retention` is `retain`.

Names are imported on first use; only `migrate`, upgrades that migrate, and `spark` need Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from state_pipelines import errors, spark, sql
    from state_pipelines.flink.status import status
    from state_pipelines.operations.auditing import audit_paths as verify_all
    from state_pipelines.operations.auditing import audit_snapshot as verify
    from state_pipelines.operations.balance import measure_balance as balance
    from state_pipelines.operations.check.check import check
    from state_pipelines.operations.convert import convert
    from state_pipelines.operations.diff import diff
    from state_pipelines.operations.dump import dump
    from state_pipelines.operations.erase import erase
    from state_pipelines.operations.inspect import inspect
    from state_pipelines.operations.migration.history import RevisionDirectory
    from state_pipelines.operations.profiling import profile_snapshot as profile
    from state_pipelines.operations.rescale import rescale
    from state_pipelines.operations.retention import plan_retention
    from state_pipelines.operations.state_rows import read
    from state_pipelines.snapshot import Declarations, Operator, Snapshot, State, declare, open_snapshot
    from state_pipelines.spark.bootstrap_run import bootstrap
    from state_pipelines.spark.migration_run import migrate
    from state_pipelines.storage import use_storage_options
    from state_pipelines.upgrades.rehearsal import rehearse
    from state_pipelines.upgrades.savepoint_policy import savepoint
    from state_pipelines.upgrades.upgrade_run import upgrade

__all__ = [
    "Declarations",
    "Operator",
    "RevisionDirectory",
    "Snapshot",
    "State",
    "__version__",
    "balance",
    "bootstrap",
    "check",
    "convert",
    "declare",
    "diff",
    "dump",
    "erase",
    "errors",
    "inspect",
    "migrate",
    "open_snapshot",
    "plan_retention",
    "profile",
    "read",
    "rehearse",
    "rescale",
    "savepoint",
    "spark",
    "sql",
    "status",
    "upgrade",
    "use_storage_options",
    "verify",
    "verify_all",
]

__version__ = "0.1.0"

_DEFINITIONS = {
    "Declarations": "snapshot.Declarations",
    "Operator": "snapshot.Operator",
    "RevisionDirectory": "operations.migration.history.RevisionDirectory",
    "Snapshot": "snapshot.Snapshot",
    "State": "snapshot.State",
    "balance": "operations.balance.measure_balance",
    "bootstrap": "spark.bootstrap_run.bootstrap",
    "check": "operations.check.check.check",
    "convert": "operations.convert.convert",
    "declare": "snapshot.declare",
    "diff": "operations.diff.diff",
    "dump": "operations.dump.dump",
    "erase": "operations.erase.erase",
    "inspect": "operations.inspect.inspect",
    "migrate": "spark.migration_run.migrate",
    "open_snapshot": "snapshot.open_snapshot",
    "plan_retention": "operations.retention.plan_retention",
    "profile": "operations.profiling.profile_snapshot",
    "read": "operations.state_rows.read",
    "rehearse": "upgrades.rehearsal.rehearse",
    "rescale": "operations.rescale.rescale",
    "savepoint": "upgrades.savepoint_policy.savepoint",
    "status": "flink.status.status",
    "upgrade": "upgrades.upgrade_run.upgrade",
    "use_storage_options": "storage.use_storage_options",
    "verify": "operations.auditing.audit_snapshot",
    "verify_all": "operations.auditing.audit_paths",
}
_MODULES = ("errors", "spark", "sql")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _DEFINITIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _DEFINITIONS[name].rpartition(".")
    found = getattr(import_module(f"{__name__}.{module}"), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
