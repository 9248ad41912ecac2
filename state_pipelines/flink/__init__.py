"""Running Flink jobs: clusters behind one protocol, their jobs, checkpoints and failures.

Needs neither Spark nor Dagster.
"""
