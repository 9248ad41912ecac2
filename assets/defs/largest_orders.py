"""`orders/largest_orders`: an asset of a team's own downstream of `orders`, of plain Dagster and `state_pipelines`."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

import dagster as dg
import pyarrow as pa

from state_pipelines.dagster import FlinkJobComponent

SHOWN = 10
COLUMNS = ("id", "customer", "amount")


@dg.definitions
def largest_orders(context: dg.ComponentLoadContext) -> dg.Definitions:
    """The asset, about the snapshots of `orders/defs.yaml`."""
    orders = context.load_component("orders", FlinkJobComponent).job

    @dg.asset(
        key=orders.key("largest_orders"),
        group_name=orders.name,
        partitions_def=orders.partitions,
        # Of snapshots whose audit has found no damage.
        deps=[orders.key("restore_audit")],
        kinds={"python", "arrow"},
        owners=["team:sales"],
    )
    def largest(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        """The largest orders in the state of a snapshot; a partition per snapshot, as the assets of the job have."""
        snapshot = orders.storage.find(context.partition_key)
        state = snapshot.operator("orders").state("order").to_arrow()
        values = pa.Table.from_struct_array(state["value"]).sort_by([("amount", "descending")]).select(COLUMNS)
        rows = [dg.TableRecord(row) for row in values.slice(0, SHOWN).to_pylist()]
        schema = dg.TableSchema([dg.TableColumn(name) for name in COLUMNS])
        return dg.MaterializeResult(
            metadata={
                "largest orders": dg.MetadataValue.table(rows, schema),
                "dagster/row_count": values.num_rows,
                "snapshot": dg.MetadataValue.path(snapshot.path),
            },
            data_version=dg.DataVersion(snapshot.fingerprint),
        )

    return dg.Definitions(assets=[largest])
