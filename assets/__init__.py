"""The deployment of this repository: Flink jobs in YAML, a job composed of ops, an asset of a team's own.

defs/orders, upgrade, customers    Flink jobs; built by `state_pipelines/dagster/component.py`
defs/release.py                    a job of ops; they are in `state_pipelines/dagster/ops.py`
defs/largest_orders.py             an asset downstream of states, with plain Dagster
definitions.py                     all of it, with the resources of `resources/`
"""
