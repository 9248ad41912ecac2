"""`release_orders`: savepoints of a release as one job of ops, which are in `state_pipelines/dagster/ops.py`."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

import dagster as dg

from resources.spark import SPARK
from state_pipelines.dagster import FlinkJobComponent, check, migrate, register, rescale, verify


@dg.definitions
def release(context: dg.ComponentLoadContext) -> dg.Definitions:
    """The job, about the Flink job of `orders/defs.yaml`."""
    orders = context.load_component("orders", FlinkJobComponent).job

    @dg.job(
        resource_defs={"flink_job": orders, "spark": SPARK},
        config={"ops": {"verify": {"inputs": {"snapshot": "latest"}}, "rescale": {"config": {"parallelism": 4}}}},
        # `orders_failed_runs` watches its runs, too.
        tags={"state-pipelines/flink-job": orders.name, **orders.tags},
    )
    def release_orders() -> None:
        """Verifies a savepoint, migrates it for the new code, rescales it, and adds a partition for the result."""
        register(rescale(migrate(check(verify()))))

    return dg.Definitions(jobs=[release_orders])
